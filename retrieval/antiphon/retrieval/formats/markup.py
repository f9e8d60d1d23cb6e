"""Read Markdown with markdown-it-py; find headings, and the parts of Markdown without prose."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from antiphon.retrieval.block import Span
from antiphon.retrieval.document import Document, Heading, Regions
from antiphon.retrieval.formats.text import decode_text, without_spans
from antiphon.retrieval.segmentation import FenceTracker, LineRole

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_LINE = re.compile(r"[^\n]*\n?")
_ALONE = re.compile(r"(?:(?<=\n\n)|(?<=\n\r\n)|\A)[^\s][^\n]{2,79}(?=\r?\n[ \t]*\r?\n)")
_PLAIN_TITLE = re.compile(r"""(?!\w+:)(?=.*[^\W\d_]{2})["'(]?[A-Z0-9À-Þ].*[\w"')?]$""")
_UNDERLINED = re.compile(
    r"(?:(?<=\n\n)|(?<=\n\r\n)|\A)(?:([=~*#^-])\1{2,}[ \t]*\r?\n)?(?P<title>(?=.*[^\W_])[^\s][^\n]{0,79})\r?\n"
    r"(?P<rule>([=~*#^-])\4{2,})[ \t]*(?=\r?\n|\Z)"
)
_BELOW_RULE = re.compile(
    r"(?<=\n)([=*_-])\1{9,}[ \t]*\r?\n(?:[ \t]*\r?\n)+(?P<title>[ \t]+[^\s][^\n]{2,79})(?=\r?\n[ \t]*\r?\n)"
)
_MOST_WORDS = 12
_SECTION = re.compile(
    r"(?:(\d{1,2}(?:\.\d{1,2}){0,2}\.?)\s+[A-Z][^.!?;]{2,70}[\w)]|"
    r"Abstract|Introduction|Conclusions?|Discussion|Acknowledge?ments|References|Appendix(?: [A-Z0-9].{0,60})?)"
)
_LINE_END = re.compile(r"\r\n?|\n")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL | re.IGNORECASE)
_MYST = re.compile(r"^[ \t]*(?:`{3,}|~{3,}|:{3,})[ \t]*\{[\w:-]+\}|^\([^\n()]+\)=[ \t]*$", re.MULTILINE)
_CONTAINER = re.compile(r"^[ \t]*:{3,}[ \t]*[a-zA-Z{]", re.MULTILINE)
_MYST_INCLUDE = re.compile(r"^[ \t]*(?:`{3,}|~{3,}|:{3,})[ \t]*\{((?:literal)?include)\}[ \t]*(\S+)", re.MULTILINE)
_DIRECTIVE = re.compile(
    r"[ \t]*(?:>[ \t]*)?(?:(?:`{3,}|~{3,})[ \t]*(\{[\w:-]+\})?|:{3,}[ \t]*(\{[^}\n]*\}|[a-zA-Z][\w-]*)?)[ \t]*"
)
_OPTION = re.compile(r"[ \t]*:[\w-]+:(?:[ \t]|\r?$)")
_ITEM = r"(?:[-*+]|\d{1,3}[.)])[ \t]+"
_TARGET = r"(?:\((?:[^()\n]|\([^()\n]*\))*\)|\[[^]\n]*\])"
_IMAGE = rf"!\[[^]\n]*\]{_TARGET}"
_SIGNPOST = re.compile(
    rf"""^(?:
        (?:[ \t]*{_ITEM}|(?<!\S\n)(?<!\S\r\n))\[(?:(?!\]\().)+\]\(\#[^)\s]*\)  # of a table of contents
        |[ ]{{0,3}}\[(?!\^)[^]\n]+\]:(?!:)[ \t]*\S+(?:[ \t]+(?:"[^"\n]*"|'[^'\n]*'|\([^)\n]*\)))?  # of a reference
        |[ \t]*(?:{_ITEM})?(?:(?:{_IMAGE}|\[{_IMAGE}\]{_TARGET})(?:[ \t]|&nbsp;|<br[ ]?/?>)*+)+  # images and badges
    )(?=\s*\Z|[ \t\r]*\n[ \t\r]*(?:\n|[\[!#<]|{_ITEM}))  # and no text goes on below
    """,
    re.MULTILINE | re.VERBOSE,
)


_TAGS = "a|br|center|dd|details|div|dl|dt|figure|figcaption|hr|i?frame|img|p|picture|section|source|span|sub|summary"
_MARKER = re.compile(
    rf"""^[ \t]*(?:
        (?:</?(?:{_TAGS})\b[^<>\n]*>[ \t]*)+  # HTML that the text around is laid out with
        |(?:!!!|\?\?\?\+?)[ \t]+[\w-]+(?:[ \t]+"[^"\n]*")?[ \t]*  # an admonition of Python-Markdown
        |===!?[ \t]+"[^"\n]*"[ \t]*  # a tab of PyMdown
        |>[ \t]*\[![a-zA-Z]+\][+-]?[ \t]*  # an alert of GitHub
    )(?=\r?$)""",
    re.MULTILINE | re.VERBOSE,
)


def read_markdown_document(data: bytes, source: str) -> Document:
    """Read a Markdown file without comments and the fences of MyST directives; front matter becomes metadata.

    Tables in HTML become tables in Markdown.

    The place of a passage is its lines, unless something was left out.

    Raises:
        ValueError: The bytes are binary.
    """
    from antiphon.retrieval.formats.front_matter import front_matter

    decoded = decode_text(data)
    metadata, start = front_matter(decoded.text)
    text = decoded.text[start:]
    is_myst = bool(_MYST.search(text))
    warnings = [*decoded.warnings]
    if is_myst:
        files = _MYST_INCLUDE.findall(text)
        warnings += [f"its {name} of {file} was not resolved; index that file as well" for name, file in files]
    has_directives = is_myst or bool(_CONTAINER.search(text))
    if "<!--" in text or "]:" in text or has_directives:
        text = without_spans(text, [*_comments(text, is_myst), *(_directive_spans(text) if has_directives else ())])
    if _TABLE.search(text):
        text = _with_tables(text)
    is_whole = len(text) == len(decoded.text) - start  # else the numbers of lines are not those of the file
    lines = Regions.of_lines(text, 1 + decoded.text.count("\n", 0, start)) if is_whole else None
    return Document(text, source, metadata, markdown_headings(text), regions=lines, warnings=tuple(warnings))


def _with_tables(text: str) -> str:
    """Return the text with its HTML tables as Markdown tables, except tables that only lay out the page."""
    from antiphon.retrieval.formats.html import read_html_body

    starts, parts, position = _line_starts(text), list[str](), 0
    for token in _parser(with_inline=False).parse(text):
        if token.type != "html_block" or not token.map:
            continue
        for match in _TABLE.finditer(text, max(position, starts[token.map[0]])):
            if match.start() >= starts[token.map[1]]:
                break
            table = read_html_body(match[0], "").text
            if table.startswith("| ") or "\n| " in table:
                parts += [text[position : match.start()], "\n", table, "\n"]
                position = match.end()
    return "".join([*parts, text[position:]])


def markdown_headings(text: str) -> tuple[Heading, ...]:
    """Return the ATX (``# title``) and setext (underlined) headings outside of lists and quotes."""
    starts = _line_starts(text)
    tokens = _parser(with_inline=False).parse(text)
    headings = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open" and opening.level == 0 and opening.map and inline.content:
            first, last = opening.map
            end = len(text[: starts[last]].rstrip("\r\n"))
            title = " ".join(inline.content.split())
            headings.append(Heading(starts[first], end, int(opening.tag[1]), title))
    return tuple(headings)


def _comments(text: str, is_myst: bool) -> Iterator[Span]:
    """Yield the spans of comments: ``<!-- -->`` outside of code, ``[//]: # ()``, and ``%`` lines of MyST."""
    starts = _line_starts(text)
    env: dict[str, Any] = {}
    for token in _parser(with_inline=True, is_myst=is_myst).parse(text, env):
        start, end = (starts[token.map[0]], starts[token.map[1]]) if token.map else (0, 0)
        if token.type in ("myst_line_comment", "myst_target"):
            yield start, end
        elif token.type == "html_block":
            yield from (match.span() for match in _COMMENT.finditer(text, start, end))
        elif token.type == "inline" and "<!--" in token.content:
            for child in token.children or ():
                found = text.find(child.content, start, end) if child.content else -1
                if child.type == "html_inline" and child.content.startswith("<!--") and found >= 0:
                    yield found, found + len(child.content)
                start = max(start, found + len(child.content))
    for reference in [*env.get("references", {}).values(), *env.get("duplicate_refs", ())]:
        if reference["href"] in ("#", "") and reference["title"]:  # the usual way to write an invisible comment
            yield starts[reference["map"][0]], starts[reference["map"][1]]


def _directive_spans(text: str) -> Iterator[Span]:
    """Yield the fences and options of MyST directives with prose, but not their arguments."""
    fences, in_options = FenceTracker(), False
    for start, line in _lines(text):
        match = _DIRECTIVE.match(line)
        if fences.role_of(line) is LineRole.DIRECTIVE and match:
            name = match[1] or match[2]
            yield start, start + (len(line) if name == "{include}" else match.end())
            in_options = bool(name)
        elif in_options and _OPTION.match(line):
            yield start, start + len(line)
        else:
            in_options = False


@functools.cache
def _parser(*, with_inline: bool, is_myst: bool = False) -> MarkdownIt:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.myst_blocks import myst_block_plugin

    parser = MarkdownIt("commonmark").enable("table")
    if is_myst:
        parser.use(myst_block_plugin)
    if not with_inline:
        parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _line_starts(text: str) -> list[int]:
    """Return the start of each line, with lines counted as in markdown-it, and then the end of the text twice."""
    return [0, *(match.end() for match in _LINE_END.finditer(text)), len(text), len(text)]


def markdown_signposts(text: str) -> Iterator[Span]:
    """Yield the spans of Markdown without prose: headings, and lines of only links or markup.

    Lines of links are anchor links alone in a list item or a paragraph, link reference definitions,
    images and badges. Lines of markup are HTML elements, and first lines of admonitions and tabs.
    """
    headings = ((heading.start, heading.end) for heading in markdown_headings(text))
    lines = (match.span() for pattern in (_SIGNPOST, _MARKER) for match in pattern.finditer(text))
    last = 0
    for start, end in sorted([*headings, *lines], key=lambda span: (span[0], -span[1])):
        if start >= last:  # do not yield a heading twice if it consists of links
            yield start, end
            last = end


def plain_headings(text: str) -> tuple[Heading, ...]:
    """Return the titles in plain text: underlined lines, and lines that look like titles.

    A line looks like a title if it is short, is between empty lines and does not end a sentence.
    Kinds of underlines get levels from 1 in the order of their first use; the other titles get the
    next level. If no title is underlined, a title in the first line has level 1, and all other
    titles have level 2.
    """
    underlined = (match for match in _UNDERLINED.finditer(text) if _is_title(match["title"], match["rule"]))
    below_rule = (match for match in _BELOW_RULE.finditer(text) if _is_title(match["title"]))
    found = [*((match, match["rule"][0]) for match in underlined), *((match, "") for match in below_rule)]
    ruled = sorted(found, key=lambda each: each[0].start())
    marks = list(dict.fromkeys(mark for _, mark in ruled))
    headings = [Heading(*match.span(), marks.index(mark) + 1, match["title"].strip()) for match, mark in ruled]
    spans = [match.span() for match, _ in ruled]
    for match in _ALONE.finditer(text):
        if _is_title(match[0]) and not any(start < match.end() and match.start() < end for start, end in spans):
            level = len(marks) + 1 if marks else 1 if match.start() == 0 else 2
            headings.append(Heading(match.start(), match.end(), level, match[0].strip()))
    return tuple(sorted(headings, key=lambda heading: heading.start))


def _is_title(line: str, rule: str = "") -> bool:
    title = line.strip()
    is_short = len(title.split()) <= _MOST_WORDS
    return is_short and (len(rule) >= min(len(title), 4) if rule else bool(_PLAIN_TITLE.match(title)))


def numbered_headings(text: str) -> tuple[Heading, ...]:
    """Return the section titles of a paper: numbered titles, and usual titles such as "Abstract".

    A title is short and does not end a sentence. A numbered title follows the end of a sentence or
    another title; ``3.2`` has level 2.
    """
    headings: list[Heading] = []
    before = ""
    for start, line in _lines(text):
        words = line.strip()
        match = _SECTION.fullmatch(words)
        is_after = (
            not before or before[-1] in ".:!?" or before.isdigit() or (bool(headings) and headings[-1].title == before)
        )
        if match and (is_after or not match[1]) and len(words.split()) <= _MOST_WORDS:
            level = 1 + match[1].rstrip(".").count(".") if match[1] else 1
            headings.append(Heading(start, start + len(line), level, words))
        before = words or before
    return tuple(headings)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for match in _LINE.finditer(text):
        if match[0]:
            yield match.start(), match[0].rstrip("\r\n")
