"""Documents to passages: sentences packed up to a number of tokens, by section. Knows nothing of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from antiphon.retrieval.blocks import Kind, blocks
from antiphon.retrieval.document import Document, Heading
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.sentences import Span, lines, sentences, trimmed, words

TokenCounter = Callable[[str], int]
"""How many tokens a text has, without special tokens."""

MAX_TOKENS = 128
"""About 95 words: five passages fit into a short prompt, and one says one thing."""

_FEWEST_TOKENS = 8
_CHARACTERS_PER_TOKEN = 16  # a tokenizer may call any long word one unknown token; no passage may grow by that


def chunk_document(
    document: Document, count_tokens: TokenCounter, *, max_tokens: int = MAX_TOKENS, overlap: int = 0
) -> list[Passage]:
    """Cut a document into passages of whole sentences, at most ``max_tokens`` tokens each.

    A passage begins anew at each heading, and repeats the last ``overlap`` sentences of the one before in its section.
    Fenced code and tables stay whole where they fit, and after the sentence that leads to them. What is over the limit
    is cut at line ends, then between words, then inside a word: no text is ever lost.
    ``metadata["title"]`` is the trail of headings above the passage, ``metadata["page"]`` its first page.

    Raises:
        ValueError: ``max_tokens`` is under 8, or ``overlap`` is negative.
    """
    if max_tokens < _FEWEST_TOKENS:
        raise ValueError(f"max_tokens is {max_tokens}; a passage needs room for at least {_FEWEST_TOKENS} tokens.")
    if overlap < 0:
        raise ValueError(f"overlap is {overlap}; it counts sentences, from 0.")
    packer = _Packer(document.text, count_tokens, max_tokens, overlap)
    return [
        Passage.at(document.source, start, document.text[start:end], _metadata(document, title, start))
        for section, title in _sections(document)
        for start, end in packer.pack(section)
    ]


def _metadata(document: Document, title: str, start: int) -> dict[str, str]:
    page = document.page(start)
    return {
        **document.metadata,
        **({"title": title} if title else {}),
        **({"page": str(page)} if page else {}),
    }


def _sections(document: Document) -> Iterator[tuple[Span, str]]:
    """The text from heading to heading, and the headings above it, outermost first, or else the document's title.

    A heading with nothing below it begins the section of the next heading.
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
    return " > ".join(heading.title for heading in trail) or document.metadata.get("title", "")


@dataclass(frozen=True, slots=True)
class _Packer:
    """Packs sentences of one text, greedily, in order."""

    text: str
    count_tokens: TokenCounter
    max_tokens: int
    overlap: int

    def pack(self, section: Span) -> Iterator[Span]:
        units = [unit for whole in self._wholes(section) for unit in self._fit(whole)]
        sizes = [self._size(unit) for unit in units]
        first = 0
        while first < len(units):
            last = self._fill(units, sizes, first)
            yield units[first][0], units[last - 1][1]
            if last == len(units):
                return
            first = self._step_back(units, sizes, first, last)

    def _wholes(self, section: Span) -> Iterator[Span]:
        """What is kept whole where it fits: sentences, blocks of code, tables."""
        for block in blocks(self.text, *section):
            whole = sentences if block.kind is Kind.TEXT else trimmed
            yield from whole(self.text, block.start, block.end)

    def _fill(self, units: Sequence[Span], sizes: Sequence[int], first: int) -> int:
        """The end of the longest run of units from ``first`` that fits, at least one."""
        last, total = first, 0
        while last < len(units) and (last == first or total + sizes[last] <= self.max_tokens):
            total += sizes[last]
            last += 1
        # Joined, sentences may count a token more than apart.
        while last > first + 1 and self._size((units[first][0], units[last - 1][1])) > self.max_tokens:
            last -= 1
        # What leads to code, a table or a list stands with it.
        if first + 1 < last < len(units) and self.text[units[last - 1][0] : units[last - 1][1]].endswith(":"):
            last -= 1
        return last

    def _step_back(self, units: Sequence[Span], sizes: Sequence[int], first: int, last: int) -> int:
        """Where the next passage begins: up to ``overlap`` units back, as far as the unit after them fits too."""
        start = max(first + 1, last - self.overlap)
        while start < last and self._fill(units, sizes, start) <= last:
            start += 1
        return start

    def _fit(self, unit: Span) -> Iterator[Span]:
        """The unit itself, or the largest pieces of it that fit: by lines, by words, then by halves of a word."""
        if self._size(unit) <= self.max_tokens or unit[1] - unit[0] == 1:
            yield unit
            return
        for split in (lines, words):
            pieces = list(split(self.text, *unit))
            if len(pieces) > 1:
                yield from self._join([part for piece in pieces for part in self._fit(piece)])
                return
        middle = (unit[0] + unit[1]) // 2
        yield from self._fit((unit[0], middle))
        yield from self._fit((middle, unit[1]))

    def _join(self, pieces: Sequence[Span]) -> Iterator[Span]:
        sizes = [self._size(piece) for piece in pieces]
        first = 0
        while first < len(pieces):
            last = self._fill(pieces, sizes, first)
            yield pieces[first][0], pieces[last - 1][1]
            first = last

    def _size(self, span: Span) -> int:
        length = span[1] - span[0]
        return max(self.count_tokens(self.text[span[0] : span[1]]), -(-length // _CHARACTERS_PER_TOKEN))
