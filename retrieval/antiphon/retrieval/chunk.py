"""Cut the sections of documents into passages of whole sentences, up to a maximum length."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from antiphon.retrieval.block import Block, BlockKind, Span
from antiphon.retrieval.column_names import ColumnNames
from antiphon.retrieval.document import Document, Heading
from antiphon.retrieval.formats import markup_of
from antiphon.retrieval.passage import CODE_SPANS, COLUMN_NAMES, DOCUMENT_TITLE, TRAIL, Passage
from antiphon.retrieval.segmentation import (
    blocks,
    character_boundary,
    lines,
    paragraphs,
    sentences,
    trimmed,
    words,
)

TokenCounter = Callable[[str], int]
"""A function that returns the number of tokens of a text, without special tokens."""

MAX_TOKENS = 128
"""Default maximum tokens of a passage, about 95 words. Five passages fit into a short prompt."""

_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]|[^\n]*\n[ \t]*(?:\n[ \t]*)?:[ \t]+\S")  # or a term
_FEWEST_TOKENS = 8
_CHARACTERS_PER_TOKEN = 16  # at most, because some tokenizers map a long word to one unknown token


def chunk_document(document: Document, count_tokens: TokenCounter, *, max_tokens: int = MAX_TOKENS) -> list[Passage]:
    """Cut a document into passages of whole sentences, at most ``max_tokens`` tokens each.

    A heading starts a new passage. Fenced code and tables stay whole if they fit into a passage
    together with the sentence before them. A longer piece is cut at line ends. A line that does not
    fit is cut between words, and a word that does not fit is cut inside. No text is lost. The
    metadata of a passage contain the headings above it (``title``), its pages (``page``) and other
    places in the file, such as sheets and slides. If the passage begins below the header of a
    table, ``column_names`` has the names of the columns. These names count towards ``max_tokens``.

    Args:
        count_tokens: Counts the tokens of a text, such as `Embedder.count_tokens`.
        max_tokens: Maximum number of tokens of a passage, at least 8.

    Raises:
        ValueError: ``max_tokens`` is below 8.
    """
    if max_tokens < _FEWEST_TOKENS:
        raise ValueError(f"max_tokens is {max_tokens}; a passage needs room for at least {_FEWEST_TOKENS} tokens.")
    markup = markup_of(document.source)
    tables = () if document.cut_at_lines else blocks(document.text, markup=markup, code=document.code)
    columns = ColumnNames(document.text, count_tokens, max_tokens, tables)
    packer = _Packer(document.text, count_tokens, max_tokens, columns)
    passages = []
    own_title = str(document.metadata.get("title") or "")
    origin = document.file.as_metadata() if document.file else {}
    for section, title in _sections(document):
        name = own_title if own_title not in title else ""
        parts = [] if document.cut_at_lines else [*blocks(document.text, *section, markup=markup, code=document.code)]
        wholes = packer.with_lists(_wholes(document.text, parts)) if parts else paragraphs(document.text, *section)
        for start, end in packer.pack(wholes):
            code = _code_spans(document, parts, start, end)
            above = {"title": title, COLUMN_NAMES: columns.above(start, end), CODE_SPANS: code, DOCUMENT_TITLE: name}
            known = {name: value for name, value in above.items() if value}
            metadata = {**document.metadata, **known, **document.location(start, end), **origin}
            passages.append(Passage.at(document.source, start, document.text[start:end], metadata))
    return passages


def _wholes(text: str, parts: Sequence[Block]) -> Iterator[Span]:
    """Yield the units that stay whole if they fit: sentences, code, tables and markup."""
    for part in parts:
        yield from (sentences if part.kind is BlockKind.TEXT else trimmed)(text, part.start, part.end)


def _code_spans(document: Document, parts: Sequence[Block], start: int, end: int) -> list[list[int]]:
    """Return the spans of a passage that are code, although the passage's text alone does not show that.

    If the document's text has no markup for code, as with text extracted from HTML, every span of
    code is returned. Otherwise only code that begins before the passage is returned.
    """
    code = [part for part in parts if part.kind is BlockKind.CODE and part.start < end and part.end > start]
    hidden = [part for part in code if document.code or part.start < start]
    return [[max(part.start, start), min(part.end, end)] for part in hidden]


def _sections(document: Document) -> Iterator[tuple[Span, str]]:
    """Yield the span and the title of each section. A section ends at the next heading.

    The title joins the headings above the text, outermost first. Before the first heading, the
    title is the document's title. If a heading directly follows another heading, both belong to the
    same section.
    """
    trail: list[Heading] = []
    start, written = 0, 0
    for heading in document.headings:
        if document.text[written : heading.start].strip():
            yield (start, heading.start), _title(document, trail)
            start = heading.start
        written = heading.end
        trail = [above for above in trail if above.level < heading.level] + [heading]
    yield (start, len(document.text)), _title(document, trail)


def _title(document: Document, trail: Sequence[Heading]) -> str:
    return TRAIL.join(heading.title for heading in trail) or str(document.metadata.get("title") or "")


@dataclass(frozen=True, slots=True)
class _Packer:
    """Packs the sentences of one text greedily, in order."""

    text: str
    count_tokens: TokenCounter
    max_tokens: int
    columns: ColumnNames

    def pack(self, wholes: Iterable[Span]) -> Iterator[Span]:
        return self._join([unit for whole in wholes for unit in self._fit(whole)])

    def with_lists(self, units: Iterable[Span]) -> Iterator[Span]:
        """Join the units of each list: the line that introduces the list, and its items.

        A list that does not fit into one unit is divided before an item. An item that does not fit
        is divided between sentences.
        """
        pending: Span | None = None
        item = before = -1  # the start of the last item of a pending list, and the end of what is before it
        for start, end in units:
            begins_line = not self.text[self.text.rfind("\n", 0, start) + 1 : start].strip()
            is_item = begins_line and bool(_LIST_ITEM.match(self.text, start, end))
            if pending is not None:
                belongs = is_item or (item >= 0 and self.text.count("\n", pending[1], start) < 2)
                if belongs and not is_item and pending[0] < item and not self._fits((pending[0], end)):
                    yield pending[0], before
                    pending = item, pending[1]
                if belongs and self._fits((pending[0], end)):
                    item, before = (start, pending[1]) if is_item else (item, before)
                    pending = pending[0], end
                    continue
                yield pending
            item = start if is_item else -1
            pending = (start, end) if is_item or self.text[start:end].endswith(":") else None
            if pending is None:
                yield start, end
        if pending is not None:
            yield pending

    def _fits(self, span: Span) -> bool:
        return self._size(span) <= self._limit(span)

    def _fill(self, units: Sequence[Span], sizes: Sequence[int], first: int) -> int:
        """Return the end (exclusive) of the passage that begins with unit ``first``.

        The passage contains as many units as fit, but at least one.
        """
        last, total, limit = first, 0, self._limit(units[first])
        while last < len(units) and (last == first or total + sizes[last] <= limit):
            total += sizes[last]
            last += 1
        # Joined sentences can have more tokens than the sum of their counts.
        while last > first + 1 and self._size((units[first][0], units[last - 1][1])) > limit:
            last -= 1
        # A sentence that introduces code, a table or a list goes into the next passage with them.
        if first + 1 < last < len(units) and self.text[units[last - 1][0] : units[last - 1][1]].endswith(":"):
            last -= 1
        return last

    def _fit(self, unit: Span) -> Iterator[Span]:
        """Yield the unit if it fits into a passage; otherwise yield its largest pieces that fit.

        The pieces consist of lines, words, or parts of one word.
        """
        if self._size(unit) <= self._limit(unit) or unit[1] - unit[0] == 1:
            yield unit
            return
        for split in (lines, words):
            pieces = list(split(self.text, *unit))
            if len(pieces) > 1:
                yield from self._join([part for piece in pieces for part in self._fit(piece)])
                return
        middle = character_boundary(self.text, unit[0], (unit[0] + unit[1]) // 2, unit[1])
        for half in ((unit[0], middle), (middle, unit[1])):
            for piece in trimmed(self.text, *half):
                yield from self._fit(piece)

    def _join(self, pieces: Sequence[Span]) -> Iterator[Span]:
        sizes = [self._size(piece) for piece in pieces]
        first = 0
        while first < len(pieces):
            last = self._fill(pieces, sizes, first)
            yield pieces[first][0], pieces[last - 1][1]
            first = last

    def _limit(self, first: Span) -> int:
        """Return the token limit of a passage that begins here: ``max_tokens`` less the tokens of its column names."""
        return self.max_tokens - self.columns.tokens_above(first[0])

    def _size(self, span: Span) -> int:
        length = span[1] - span[0]
        return max(self.count_tokens(self.text[span[0] : span[1]]), -(-length // _CHARACTERS_PER_TOKEN))
