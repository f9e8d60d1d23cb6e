"""Quotes: sentences of passages in the format of `reader` and `extractive`, ``[number] sentence``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from antiphon.retrieval import Passage
from antiphon.retrieval.block import BlockKind, Markup, Span
from antiphon.retrieval.formats import markup_of
from antiphon.retrieval.formats.markup import markdown_signposts
from antiphon.retrieval.segmentation import blocks, code_lines, sentences, table_rows

_LISTING_START = re.compile(r">>>|\.\.\. |#|\$ ")  # prompts of Python or a shell, comments, Markdown headings
_CODE = re.compile(r"^[\w.]+ = |[{}]$|(=|\w\().*;$|^\|.+\||^[-=+|\s]{4,}$|\n( {4}|\t)")
_CLOSING = ")]\"'”’"
_SENTENCE_ENDS = (*".!?:", *"。！？｡：।॥؟۔።፧។៕။།")
_LINE = re.compile(r"\[(\d+)\] (.+)")
_WORD = re.compile(r"[^\W\d_]{2}")
_LETTER = re.compile(r"[^\W_]")
_LIST_MARKER = re.compile(r"(?:[-*+•]|\d{1,3}[.)]|#\.)\s+")
_BLOCK_QUOTE = re.compile(r"(?:\A|\n)[ \t]*(?:>[ \t]+)+")
_DEFINITION = re.compile(r"\S[ \t]*(?:\r?\n[ \t]*){1,3}:[ \t]+\S")
_DATED_HEADING = re.compile(r"#+ .*\d.*\b(?:1[89]|20)\d\d\b")
_MAX_HEAD_WORDS = 4
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


class LineKind(Enum):
    """The kind of a line of a passage."""

    SENTENCE = "sentence"
    ITEM = "item"
    CODE = "code"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence of a passage.

    Attributes:
        number: the number of the passage in the prompt, from 1.
        sentence: the sentence, on one line and without a list marker.
        start: its first character in the passage; quotes are equal wherever they are.
        end: its end in the passage.
        kind: its kind of line.
        block: the number of its paragraph, list, code block or table in the passage.
        level: the indentation of a list item; for its later sentences one more.
        is_continuation: whether it is a later sentence of a list item.
    """

    number: int
    sentence: str
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    kind: LineKind = field(default=LineKind.SENTENCE, compare=False)
    block: int = field(default=0, compare=False)
    level: int = field(default=0, compare=False)
    is_continuation: bool = field(default=False, compare=False)

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

    A line is a sentence, a list item, a table row or a line of code. Not quotable are Markdown headings and markers,
    column names, listings that are not marked as code, and code without a word. Underlined titles are left out.
    """
    return [[_shown(number, line) for line in _parse(passage)] for number, passage in enumerate(passages, start=1)]


def _shown(number: int, line: _Line) -> Quote | str:
    if not line.is_quotable:
        return line.text
    return Quote(number, line.text, line.start, line.end, line.kind, line.block, line.level, line.is_continuation)


def _parse(passage: Passage) -> Iterator[_Line]:
    """Yield the lines of a passage, with their places in it."""
    if passage.column_names:
        yield _Line(passage.column_names, False, 0, 0)
    markup, in_table = markup_of(passage.source), bool(passage.column_names)
    parsers = _PARSERS[markup]
    number = 0
    for block in blocks(passage.text, markup=markup, in_table=in_table, code=passage.code_spans):
        lines = parsers[block.kind](passage.text[block.start : block.end])
        for line in lines:
            start, end = block.start + line.start, block.start + line.end
            yield replace(line, start=start, end=end, block=number + line.block)
        number += lines[-1].block + 1 if lines else 0


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a block, from its character ``start`` to ``end``; ``block`` counts paragraphs and lists from 0."""

    text: str
    is_quotable: bool
    start: int
    end: int
    kind: LineKind = LineKind.SENTENCE
    block: int = 0
    level: int = 0
    is_continuation: bool = False


def _read_text(text: str) -> list[_Line]:
    return [*_text_lines(text, 0, len(text))]


def _text_lines(text: str, begin: int, stop: int, block: int = 0) -> Iterator[_Line]:
    """Yield the sentences and list items of ``text[begin:stop]``; what is indented below an item belongs to it."""
    position, item = begin, -1  # the end of the sentence before, and the indentation of the list item
    for start, end in _with_heads(text, begin, stop):
        is_new = position > begin and bool(_BLANK_LINE.search(text, position, start))
        before = text[text.rfind("\n", 0, start) + 1 : start]
        indent = len(before) if not before.strip() else -1
        marker = _LIST_MARKER.match(text, start, end) if indent >= 0 else None
        is_first = bool(marker or (indent >= 0 and _DEFINITION.search(text, start, end)))
        if is_first:
            block += item < 0 and position > begin
            item = level = indent
        elif item >= 0 and (indent < 0 or indent > item or not is_new):
            level = item + 1
        else:
            block += is_new or item >= 0
            item, level = -1, 0
        kind = LineKind.ITEM if item >= 0 else LineKind.SENTENCE
        first, line = marker.end() if marker else start, quoted_form(text[start:end])
        is_quotable = is_prose(text[start:end]) and bool(_LETTER.search(line))
        yield _Line(line, is_quotable, first, end, kind, block, level, item >= 0 and not is_first)
        position = end


def _with_heads(text: str, begin: int, stop: int) -> Iterator[Span]:
    """Yield the sentences of ``text[begin:stop]``; the head of a list item, ``- Wax. It melts.``, has the next one."""
    head = head_end = -1
    for start, end in sentences(text, begin, stop):
        marker = _LIST_MARKER.match(text, start, end)
        is_head = len(text[marker.end() : end].split()) <= _MAX_HEAD_WORDS if marker else False
        follows = head >= 0 and not marker and not _BLANK_LINE.search(text, head_end, start)
        if head >= 0 and not follows:
            yield head, head_end
        first, head = head if follows else start, -1
        if is_head:
            head, head_end = start, end
        else:
            yield first, end
    if head >= 0:
        yield head, head_end


def _read_markdown(text: str) -> list[_Line]:
    lines: list[_Line] = []
    at = block = 0
    for start, end in markdown_signposts(text):
        lines += _text_lines(text, at, start, block)
        block = lines[-1].block + 1 if lines else 0
        shown = quoted_form(text[start:end])
        if _DATED_HEADING.match(shown):
            start, shown = end - len(text[start:end].lstrip("# ")), shown.lstrip("# ")
            lines.append(_Line(shown, True, start, end, block=block))
        else:
            lines.append(_Line(shown, False, start, end, block=block))
        at, block = end, block + 1
    return [*lines, *_text_lines(text, at, len(text), block)]


def _read_code(text: str) -> list[_Line]:
    return _locate(text, [(line, bool(_WORD.search(line))) for line in code_lines(text)], LineKind.CODE)


def _read_table(text: str) -> list[_Line]:
    columns, rows = table_rows(text)
    above = [(columns, False)] if columns else []
    return _locate(text, above + [(row, bool(_WORD.search(row))) for row in rows], LineKind.ROW)


def _locate(text: str, lines: Sequence[tuple[str, bool]], kind: LineKind) -> list[_Line]:
    """Return lines that follow each other in a text, with their places in it."""
    found: list[_Line] = []
    at = 0
    for line, is_quotable in lines:
        start = text.index(line, at)
        at = start + len(line)
        found.append(_Line(" ".join(line.split()), is_quotable, start, at, kind))
    return found


def _no_lines(text: str) -> list[_Line]:
    return []


_LineParsers = Mapping[BlockKind, Callable[[str], list[_Line]]]
_PLAIN: _LineParsers = {
    BlockKind.TEXT: _read_text,
    BlockKind.CODE: _read_code,
    BlockKind.TABLE: _read_table,
    BlockKind.MARKUP: _no_lines,
}
_PARSERS: Mapping[Markup, _LineParsers] = {
    Markup.PLAIN: _PLAIN,
    Markup.MARKDOWN: {**_PLAIN, BlockKind.TEXT: _read_markdown},
}


def quoted_form(sentence: str) -> str:
    """Return the sentence on one line, without a list marker and the markers of a block quote."""
    line = " ".join(_BLOCK_QUOTE.sub(" ", sentence).split())
    marker = _LIST_MARKER.match(line)
    return line[marker.end() :] if marker else line


def is_prose(sentence: str) -> bool:
    """Return whether a sentence is prose and not a line of a listing; in doubt it is prose."""
    line = quoted_form(sentence)
    ends = line.rstrip(_CLOSING).endswith(_SENTENCE_ENDS)
    return not _LISTING_START.match(line) and (ends or not _CODE.search(sentence.strip()))
