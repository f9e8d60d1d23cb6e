"""Quotes: sentences of passages in the format of the bundled extractive model, ``[number] sentence``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from antiphon.retrieval import Passage
from antiphon.retrieval.formats import is_markdown
from antiphon.retrieval.formats.markup import markdown_signposts
from antiphon.retrieval.segmentation import BlockKind, blocks, code_lines, sentences, table_rows

_LISTING_START = re.compile(r">>>|\.\.\. |#|\$ ")  # prompts of Python or a shell, comments, Markdown headings
_CODE = re.compile(r"^[\w.]+ = |[{}]$|(=|\w\().*;$|^\|.+\||^[-=+|\s]{4,}$|\n( {4}|\t)")
_CLOSING = ")]\"'”’"
_SENTENCE_ENDS = (*".!?:", *"。！？｡：।॥؟۔።፧។៕။།")
_LINE = re.compile(r"\[(\d+)\] (.+)")
_WORD = re.compile(r"[^\W\d_]{2}")
_LIST_MARKER = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s+")


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence of a passage.

    Attributes:
        number: the number of the passage in the prompt, from 1.
        sentence: the sentence, on one line and without a list marker.
        start: its first character in the passage; quotes are equal wherever they are.
        end: its end in the passage.
    """

    number: int
    sentence: str
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)

    @property
    def line(self) -> str:
        """The quote as a line of an answer."""
        return f"[{self.number}] {self.sentence}"


def quotes_of(text: str) -> tuple[Quote, ...]:
    """Return the quotes of an answer, one per line; lines of another format are skipped."""
    lines = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return tuple(Quote(int(line[1]), line[2]) for line in lines if line)


def quotable_lines(passages: Sequence[Passage]) -> list[tuple[Quote, ...]]:
    """Return the quotable lines of each passage; see `lines_of`."""
    return [tuple(line for line in lines if isinstance(line, Quote)) for lines in lines_of(passages)]


def lines_of(passages: Sequence[Passage]) -> list[list[Quote | str]]:
    """Return the lines of each passage: quotable ones as quotes, others as text.

    A line is a sentence, a list item, a table row or a line of fenced code. Not quotable are Markdown headings and
    markers, column names, listings without a fence, and code without a word.
    """
    return [[_shown(number, line) for line in _parse(passage)] for number, passage in enumerate(passages, start=1)]


def _shown(number: int, line: _Line) -> Quote | str:
    return Quote(number, line.text, line.start, line.end) if line.is_quotable else line.text


def _parse(passage: Passage) -> Iterator[_Line]:
    """Yield the lines of a passage, with their places in it."""
    if passage.column_names:
        yield _Line(passage.column_names, False, 0, 0)
    parsers = _MARKDOWN if is_markdown(passage.source) else _PLAIN
    for block in blocks(passage.text, in_table=bool(passage.column_names)):
        for line in parsers[block.kind](passage.text[block.start : block.end]):
            yield replace(line, start=block.start + line.start, end=block.start + line.end)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a block, from its character ``start`` to ``end``."""

    text: str
    is_quotable: bool
    start: int
    end: int


def _read_text(text: str, at: int = 0) -> list[_Line]:
    lines = []
    for start, end in sentences(text):
        marker = _LIST_MARKER.match(text, start, end)
        first = marker.end() if marker else start
        lines.append(_Line(quoted_form(text[start:end]), is_prose(text[start:end]), at + first, at + end))
    return lines


def _read_markdown(text: str) -> list[_Line]:
    lines: list[_Line] = []
    at = 0
    for start, end in markdown_signposts(text):
        lines += [*_read_text(text[at:start], at), _Line(quoted_form(text[start:end]), False, start, end)]
        at = end
    return lines + _read_text(text[at:], at)


def _read_code(text: str) -> list[_Line]:
    return _locate(text, [(line, bool(_WORD.search(line))) for line in code_lines(text)])


def _read_table(text: str) -> list[_Line]:
    columns, rows = table_rows(text)
    above = [(columns, False)] if columns else []
    return _locate(text, above + [(row, bool(_WORD.search(row))) for row in rows])


def _locate(text: str, lines: Sequence[tuple[str, bool]]) -> list[_Line]:
    """Return lines that follow each other in a text, with their places in it."""
    found: list[_Line] = []
    at = 0
    for line, is_quotable in lines:
        start = text.index(line, at)
        at = start + len(line)
        found.append(_Line(" ".join(line.split()), is_quotable, start, at))
    return found


_LineParsers = Mapping[BlockKind, Callable[[str], list[_Line]]]
_PLAIN: _LineParsers = {BlockKind.TEXT: _read_text, BlockKind.CODE: _read_code, BlockKind.TABLE: _read_table}
_MARKDOWN: _LineParsers = {**_PLAIN, BlockKind.TEXT: _read_markdown}


def quoted_form(sentence: str) -> str:
    """Return the sentence on one line, without a list marker."""
    line = " ".join(sentence.split())
    marker = _LIST_MARKER.match(line)
    return line[marker.end() :] if marker else line


def is_prose(sentence: str) -> bool:
    """Return whether a sentence is prose and not a line of a listing; in doubt it is prose."""
    line = quoted_form(sentence)
    ends = line.rstrip(_CLOSING).endswith(_SENTENCE_ENDS)
    return not _LISTING_START.match(line) and (ends or not _CODE.search(sentence.strip()))
