"""Quotes: sentences of passages in the format of the bundled extractive model, ``[number] sentence``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from antiphon.retrieval import Passage
from antiphon.retrieval.formats import is_markdown
from antiphon.retrieval.formats.markup import markdown_signposts
from antiphon.retrieval.segmentation import BlockKind, blocks, code_lines, sentences, table_rows

_LISTING_START = re.compile(r">>>|\.\.\. |#|\$ ")  # prompts of Python or a shell, comments, Markdown headings
_CODE = re.compile(r"^[\w.]+ = |[{}]$|(=|\w\().*;$|^\|.+\||^[-=+|\s]{4,}$|\n( {4}|\t)")
_CLOSING = ")]\"'”’"
_LINE = re.compile(r"\[(\d+)\] (.+)")
_WORD = re.compile(r"[^\W\d_]{2}")
_LIST_MARKER = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s+")


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence of passage ``number`` of the prompt, counted from 1."""

    number: int
    sentence: str

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
    return [
        [
            Quote(number, line.text) if line.is_quotable else line.text
            for block in blocks(passage.text)
            for line in _line_parsers(passage)[block.kind](passage.text[block.start : block.end])
        ]
        for number, passage in enumerate(passages, start=1)
    ]


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    is_quotable: bool


def _read_text(text: str) -> list[_Line]:
    return [_Line(quoted_form(sentence), is_prose(sentence)) for sentence in _sentences(text)]


def _read_markdown(text: str) -> list[_Line]:
    lines: list[_Line] = []
    at = 0
    for start, end in markdown_signposts(text):
        lines += [*_read_text(text[at:start]), _Line(quoted_form(text[start:end]), False)]
        at = end
    return lines + _read_text(text[at:])


def _read_code(text: str) -> list[_Line]:
    return [_Line(" ".join(line.split()), bool(_WORD.search(line))) for line in code_lines(text)]


def _read_table(text: str) -> list[_Line]:
    columns, rows = table_rows(text)
    above = [_Line(" ".join(columns.split()), False)] if columns else []
    return above + [_Line(" ".join(row.split()), bool(_WORD.search(row))) for row in rows]


_LineParsers = Mapping[BlockKind, Callable[[str], list[_Line]]]
_PLAIN: _LineParsers = {BlockKind.TEXT: _read_text, BlockKind.CODE: _read_code, BlockKind.TABLE: _read_table}
_MARKDOWN: _LineParsers = {**_PLAIN, BlockKind.TEXT: _read_markdown}


def _line_parsers(passage: Passage) -> _LineParsers:
    return _MARKDOWN if is_markdown(passage.source) else _PLAIN


def quoted_form(sentence: str) -> str:
    """Return the sentence on one line, without a list marker."""
    line = " ".join(sentence.split())
    marker = _LIST_MARKER.match(line)
    return line[marker.end() :] if marker else line


def is_prose(sentence: str) -> bool:
    """Return whether a sentence is prose and not a line of a listing; in doubt it is prose."""
    line = quoted_form(sentence)
    ends = line.rstrip(_CLOSING).endswith((".", "!", "?", ":"))
    return not _LISTING_START.match(line) and (ends or not _CODE.search(sentence.strip()))


def _sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]
