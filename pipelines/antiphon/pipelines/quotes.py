"""Quotes: lines of passages in the format ``[number] line``, which the models `reader` and `extractive` use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from antiphon.retrieval import Passage
from antiphon.retrieval.block import BlockKind, Markup
from antiphon.retrieval.column_names import cells_of
from antiphon.retrieval.formats import markup_of
from antiphon.retrieval.formats.markup import markdown_signposts
from antiphon.retrieval.passage import TRAIL
from antiphon.retrieval.segmentation import blocks, code_lines, sentences, table_rows

_LIST_MARKER = re.compile(r"(?:[-*+•]|\d{1,3}[.)]|#\.)\s+")
_BLOCK_QUOTE = re.compile(r"(?:\A|\n)[ \t]*(?:>[ \t]+)+")
_CONTENTS = re.compile(r"(?:[.·…][ \t]?){4,}[ \t]*[\dxvi]{1,4}(?!\S)")  # table of contents: dots, then a page number
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class Quote:
    """A line of a passage. Lines with the same number and text are equal.

    Attributes:
        number: the number of the passage, from 1.
        sentence: the text, on one line and without a list marker.
        start: the line's first character in the passage.
        block: the number, within the passage, of the paragraph, list, code block or table that
            contains the line.
        is_listed: whether this block is a list, a code block or a table.
        is_quotable: whether an answer may quote the line; markup, such as a heading, is only shown.
        is_row: whether the line is a table row. Its ``sentence`` also contains the column names,
            which are in another place of the passage.
    """

    number: int
    sentence: str
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    block: int = field(default=0, compare=False)
    is_listed: bool = field(default=False, compare=False)
    is_quotable: bool = field(default=True, compare=False)
    is_row: bool = field(default=False, compare=False)

    @property
    def line(self) -> str:
        """The line as prompts show it and answers quote it."""
        return f"[{self.number}] {self.sentence}" if self.is_quotable else self.sentence


def quotable_lines(passages: Sequence[Passage]) -> list[list[Quote]]:
    """Return the quotable lines of each passage; see `lines_of`."""
    return [[line for line in lines if line.is_quotable] for lines in lines_of(passages)]


def lines_of(passages: Sequence[Passage]) -> list[list[Quote]]:
    """Return the lines of each passage; the headings above the passage are not included.

    A line is a sentence, a list item, a table row with the names of its columns, or a line of code. Headings, links and
    other markup, rows with one value, column names, tables of contents and lines without a letter or digit are not
    quotable.
    """
    return [[*_lines(number, passage)] for number, passage in enumerate(passages, start=1)]


def headings_of(passage: Passage) -> list[str]:
    """Return the headings above a passage, outermost first."""
    return [title for title in str(passage.metadata.get("title") or "").split(TRAIL) if title]


def quoted_form(sentence: str) -> str:
    """Return a sentence on one line, without list markers and block quote markers."""
    line = " ".join(_BLOCK_QUOTE.sub(" ", sentence).split())
    marker = _LIST_MARKER.match(line)
    return line[marker.end() :] if marker else line


def named_row(row: str, names: Sequence[str]) -> str:
    """Return a table row with the names of its columns, such as ``Supplier: Nordcloud; Renewal date: 2026-09-30``.

    Args:
        row: the cells between bars.
        names: the names of the columns; the names of the last columns may be missing.
    """
    cells = [cell.replace("\\|", "|") for cell in cells_of(f"|{row}|")]
    named = [f"{name}: {cell}" if name else cell for name, cell in zip_longest(names, cells, fillvalue="") if cell]
    return "; ".join(named)


def _lines(number: int, passage: Passage) -> Iterator[Quote]:
    markup, headings, count = markup_of(passage.source), headings_of(passage), 0
    for part in blocks(passage.text, markup=markup, in_table=bool(passage.column_names), code=passage.code_spans):
        first = count
        names = passage.column_names.split(" | ") if passage.column_names and part.start == 0 else []
        for line in _block_lines(passage.text[part.start : part.end], part.kind, markup, names):
            start, end, count = part.start + line.start, part.start + line.end, first + line.block + 1
            is_quotable = line.is_quotable and any(map(str.isalnum, line.sentence))
            whole = passage.text[passage.text.rfind("\n", 0, start) + 1 :].partition("\n")[0]
            is_quotable &= part.kind is BlockKind.CODE or not _CONTENTS.search(whole)
            if line.sentence.lstrip("# ") not in headings:
                yield Quote(number, line.sentence, start, end, count - 1, line.is_listed, is_quotable, line.is_row)


def _block_lines(text: str, kind: BlockKind, markup: Markup, names: Sequence[str]) -> Iterable[Quote]:
    """Return the lines of a block, with their places in the block.

    Args:
        names: the column names of a table whose header is above the passage.
    """
    if kind is BlockKind.TEXT:
        return _prose(text, [*markdown_signposts(text)] if markup is Markup.MARKDOWN else [])
    if kind is BlockKind.CODE:
        return _located(text, code_lines(text))
    if kind is BlockKind.TABLE:
        columns, rows = table_rows(text)
        names = [name for name in (cells_of(f"|{columns}|") if columns else names) if name != "…"]
        return [_with_names(quote, names) for quote in _located(text, rows)] if any(names) else _located(text, rows)
    return ()


def _with_names(row: Quote, names: Sequence[str]) -> Quote:
    """Return a row with its column names. A row with several values, or of a one-column table, is quotable."""
    is_quotable = sum(map(bool, cells_of(f"|{row.sentence}|"))) > 1 or len(names) == 1
    return replace(row, sentence=named_row(row.sentence, names), is_quotable=is_quotable, is_row=True)


def _located(text: str, lines: Sequence[str]) -> Iterator[Quote]:
    """Yield the lines of a code block or table with their places."""
    end = 0
    for line in lines:
        start = text.index(line, end)
        end = start + len(line)
        yield Quote(0, " ".join(line.split()), start, end, is_listed=True)


def _prose(text: str, markup: Sequence[tuple[int, int]]) -> Iterator[Quote]:
    """Yield the sentences, list items and spans of markup of a text. Each paragraph and each list is a block."""
    position = block = 0
    last: Quote | None = None
    for first, stop in [*markup, (len(text), len(text))]:
        for start, end in sentences(text, position, first):
            is_first = not text[text.rfind("\n", 0, start) + 1 : start].strip()  # the sentence begins its line
            marker = _LIST_MARKER.match(text, start, end) if is_first else None
            is_new = bool(_BLANK_LINE.search(text, position, start))
            is_item = bool(marker or (last and last.is_listed and not is_new))
            continues = last and last.is_quotable and last.is_listed is is_item and (marker or not is_new)
            block += last is not None and not continues
            last = Quote(0, quoted_form(text[start:end]), marker.end() if marker else start, end, block, is_item)
            yield last
            position = end
        if first < stop:
            block += last is not None
            last = Quote(0, quoted_form(text[first:stop]), first, stop, block, is_quotable=False)
            yield last
            position = stop
