"""Builds a document from blocks of text, headings and tables, each with its place in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from antiphon.retrieval.document import Document, Heading, Metadata, Regions

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")
_GAP = "\n\n"


class DocumentBuilder:
    """Collects the text of a document, its headings, and the place of each part in the file."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._headings: list[Heading] = []
        self._starts: list[int] = []
        self._labels: list[Mapping[str, str]] = []
        self._code: list[tuple[int, int]] = []

    def add(self, text: str, place: Mapping[str, str] | None = None, *, gap: str = _GAP) -> int:
        """Append a block of text and return its start.

        Args:
            text: The text, from which control characters and outer empty lines are removed.
            place: The block's place in the file, such as ``{"slide": "3"}``. None: the place of the
                previous block.
            gap: White space between the previous block and this block.
        """
        text = printable(text).strip("\n").rstrip()
        if not text.strip():
            return self._length
        if self._length:
            self._parts.append(gap)
            self._length += len(gap)
        start = self._length
        if place is not None and (not self._labels or self._labels[-1] != place):
            self._starts.append(start)
            self._labels.append(place)
        self._parts.append(text)
        self._length += len(text)
        return start

    def add_heading(self, title: str, level: int, place: Mapping[str, str] | None = None) -> None:
        """Append a heading, unless the title is blank.

        Args:
            level: The level of the heading; 1 is the outermost.
        """
        title = " ".join(printable(title).split())
        if title:
            start = self.add(title, place)
            self._headings.append(Heading(start, self._length, level, title))

    def add_table(self, rows: Iterable[tuple[Sequence[str], Mapping[str, str] | None]]) -> None:
        """Append a table in Markdown; its first row is the header.

        Args:
            rows: The cells of each row, and the place of the row in the file.
        """
        gap, rule = _GAP, ""
        for cells, place in rows:
            row = table_row(cells)
            if gap == _GAP:
                rule = "|" + " --- |" * len(cells)
            self.add(row, place, gap=gap)
            if rule:
                self.add(rule, gap="\n")
            gap, rule = "\n", ""

    def add_document(self, document: Document, place: Mapping[str, str] | None = None, *, level: int = 0) -> None:
        """Append the text, the headings and the code of a document.

        Args:
            level: The number that is added to the levels of the document's headings.
        """
        text = document.text.strip("\n").rstrip()
        shift = len(document.text) - len(document.text.lstrip("\n"))
        if printable(text) != text:
            self.add(text, place)  # without headings, because their positions would be wrong
            return
        start = self.add(text, place) - shift
        for each in document.headings:
            self._headings.append(Heading(start + each.start, start + each.end, each.level + level, each.title))
        self._code += [(start + first, start + last) for first, last in document.code]

    def build(self, source: str, metadata: Metadata | None = None, warnings: Sequence[str] = ()) -> Document:
        """Return the document.

        Args:
            metadata: The document's metadata; values that are None or empty are left out.
            warnings: Sentences for the user about missing content and about guesses.
        """
        regions = Regions(tuple(self._starts), tuple(self._labels)) if self._starts else None
        facts = {name: value for name, value in (metadata or {}).items() if value not in (None, "", [])}
        return Document(
            "".join(self._parts),
            source,
            facts,
            tuple(self._headings),
            regions=regions,
            code=tuple(self._code),
            warnings=tuple(warnings),
        )


def printable(text: str) -> str:
    """Return the text without control characters and lone surrogates."""
    return _UNPRINTABLE.sub("", text)


def listed(names: Sequence[object], most: int = 12) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def table_row(cells: Iterable[str]) -> str:
    """Return a row of a table in Markdown."""
    return "| " + " | ".join(" ".join(text.split()).replace("|", "\\|") for text in cells) + " |"
