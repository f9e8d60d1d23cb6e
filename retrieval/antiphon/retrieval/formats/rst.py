"""Read reStructuredText with docutils: section titles, comments and includes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from antiphon.retrieval.block import Span
from antiphon.retrieval.document import Document, Heading
from antiphon.retrieval.formats.text import decode_text, without_spans

if TYPE_CHECKING:
    from docutils import nodes

_INCLUDE = re.compile(r"^\s*\.\. ((?:literal)?include):: *([^\s<]\S*)", re.MULTILINE)
_COMMENT = re.compile(r"[ \t]*\.\.(?:[ \t]|\r?\n?$)")
_WORDS = re.compile(r"\S+")


def read_rst_document(data: bytes, source: str) -> Document:
    """Read a reStructuredText file, without its comments. Included files are reported, not read.

    Args:
        data: The bytes of the file.
        source: The name of the document.

    Raises:
        ValueError: The bytes are binary.
    """
    decoded = decode_text(data)
    tree = _parsed(decoded.text)
    text = without_spans(decoded.text, _comments(tree, decoded.text))
    warnings = [*decoded.warnings]
    warnings += [f"its {name} of {file} was not resolved; index that file as well" for name, file in _includes(tree)]
    return Document(text, source, {}, rst_headings(text), warnings=tuple(warnings))


def rst_headings(text: str) -> tuple[Heading, ...]:
    """Return the section titles of reStructuredText; the first use of an underline style sets its level."""
    from docutils import nodes

    starts = _line_starts(text)
    headings = []
    for title in _parsed(text).findall(nodes.title):
        if isinstance(title.parent, nodes.section) and title.line:
            last = title.line - 1  # the underline
            lines = [text[starts[number] : starts[number + 1]].strip() for number in range(last + 1)][-3:]
            first = last - 2 if len(lines) == 3 and lines[0] == lines[2] else last - 1
            end = len(text[: starts[last + 1]].rstrip("\r\n"))
            headings.append(Heading(starts[first], end, _level(title), lines[-2]))
    return tuple(headings)


def _level(title: nodes.title) -> int:
    level, above = 0, title.parent
    while above is not None:
        level += above.tagname == "section"
        above = above.parent
    return level


def _comments(tree: nodes.document, text: str) -> Iterator[Span]:
    """Yield the spans of comments. Docutils tells the line where a comment ends; its words are compared."""
    from docutils import nodes

    starts = _line_starts(text)
    for comment in tree.findall(nodes.comment):
        words = _WORDS.findall(comment.astext())
        last = min(comment.line + 1 if comment.line else len(starts), len(starts) - 1)
        before = last - comment.astext().count("\n") - 6 if comment.line else 0
        for first in range(last - 1, max(before, 0) - 1, -1):
            start = starts[first]
            if _COMMENT.match(text, start, starts[first + 1]):
                found = [*_first_words(text, start, starts[last], len(words) + 1)]
                if [word for word, _ in found[1:]] == words:
                    yield start, found[-1][1]
                    break


def _first_words(text: str, start: int, end: int, count: int) -> Iterator[tuple[str, int]]:
    for _, match in zip(range(count), _WORDS.finditer(text, start, end), strict=False):
        yield match[0], match.end()


def _includes(tree: nodes.document) -> Iterator[tuple[str, str]]:
    """Yield the directive and the file of each include; docutils reports them, because it may not read files."""
    from docutils import nodes

    for message in tree.findall(nodes.system_message):
        for literal in message.findall(nodes.literal_block):
            if match := _INCLUDE.match(literal.astext()):
                yield match[1], match[2]


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _parsed(text: str) -> nodes.document:
    """Return the tree of a text. Docutils reads no files, runs no code and reports errors as nodes."""
    from docutils import utils
    from docutils.parsers.rst import Parser

    tree = utils.new_document("text", _settings())
    try:
        Parser().parse(text, tree)
    except (RecursionError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"docutils cannot parse it ({type(error).__name__}: {error})") from error
    return tree


@functools.cache
def _settings() -> Any:
    from docutils import frontend
    from docutils.parsers.rst import Parser

    settings = frontend.get_default_settings(Parser)
    settings.report_level = settings.halt_level = 5  # report and raise nothing
    settings.file_insertion_enabled = settings.raw_enabled = False
    settings.syntax_highlight = "none"
    settings.line_length_limit = 10**9
    return settings
