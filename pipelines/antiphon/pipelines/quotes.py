"""Quotes: sentences of passages in the form in which the reader says them. Knows nothing of questions or of models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from antiphon.retrieval import Passage
from antiphon.retrieval.blocks import Kind, blocks, code_lines, table_rows
from antiphon.retrieval.load import is_markdown
from antiphon.retrieval.markup import markdown_signposts
from antiphon.retrieval.sentences import sentences

_PROMPT = re.compile(r">>>|\.\.\. |#|\$ ")  # of Python or of a shell; a comment, or a heading in Markdown
_CODE = re.compile(r"^[\w.]+ = |[{}]$|(=|\w\().*;$|^\|.+\||^[-=+|\s]{4,}$|\n( {4}|\t)")
_CLOSING = ")]\"'”’"
_LINE = re.compile(r"\[(\d+)\] (.+)")
_WORD = re.compile(r"[^\W\d_]{2}")
_ITEM = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s+")


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence as it stands in passage ``number`` of those that the model reads, counted from 1."""

    number: int
    sentence: str

    @property
    def line(self) -> str:
        """The quote as a line of an answer."""
        return f"[{self.number}] {self.sentence}"


def quotes_of(text: str) -> tuple[Quote, ...]:
    """The quotes of an answer, one a line; a line of another form is none."""
    lines = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return tuple(Quote(int(line[1]), line[2]) for line in lines if line)


def quotable_lines(passages: Sequence[Passage]) -> list[tuple[Quote, ...]]:
    """For each passage its sentences, each as the line that an answer could have; see `lines_of`."""
    return [tuple(line for line in lines if isinstance(line, Quote)) for lines in lines_of(passages)]


def lines_of(passages: Sequence[Passage]) -> list[list[Quote | str]]:
    """For each passage its text line by line: what can be quoted as a quote, all else as a text.

    A line is a sentence, an item of a list, a row of a table or a line of fenced code; what cannot be quoted are
    signposts of Markdown, names of columns, listings without a fence, and code without a word.
    """
    return [
        [
            Quote(number, line.text) if line.is_quotable else line.text
            for block in blocks(passage.text)
            for line in _reading(passage)[block.kind](passage.text[block.start : block.end])
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


_Reading = Mapping[Kind, Callable[[str], list[_Line]]]
_PLAIN: _Reading = {Kind.TEXT: _read_text, Kind.CODE: _read_code, Kind.TABLE: _read_table}
_MARKDOWN: _Reading = {**_PLAIN, Kind.TEXT: _read_markdown}


def _reading(passage: Passage) -> _Reading:
    return _MARKDOWN if is_markdown(passage.source) else _PLAIN


def quoted_form(sentence: str) -> str:
    """The sentence on one line, without the mark of a list item before it."""
    line = " ".join(sentence.split())
    mark = _ITEM.match(line)
    return line[mark.end() :] if mark else line


def is_prose(sentence: str) -> bool:
    """Whether a sentence of a passage is words and no line of a listing; in doubt it is words."""
    line = quoted_form(sentence)
    ends = line.rstrip(_CLOSING).endswith((".", "!", "?", ":"))
    return not _PROMPT.match(line) and (ends or not _CODE.search(sentence.strip()))


def _sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]
