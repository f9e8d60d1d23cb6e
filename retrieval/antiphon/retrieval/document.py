"""A document: the text of one file, its headings, and the places of the text in the file."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.retrieval.source_file import SourceFile

Metadata = Mapping[str, Any]
"""Names and values that describe a document or a passage; the values are JSON values, dates or times."""

_LINE_END = re.compile("\n")
_CELLS = re.compile(r"[A-Z]+\d+:[A-Z]+\d+")

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Matches a lone surrogate, which Python strings can contain but UTF-8 cannot encode."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its span (including markup), its title, and its level (1 is the outermost)."""

    start: int
    end: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Regions:
    """The place in the file of each part of a text, such as the sheet, cells, slide or lines.

    Attributes:
        starts: The first character of each part, ascending.
        labels: The place of each part, such as ``{"sheet": "Costs", "cells": "A2:C2"}``, or the numbers of lines.
    """

    starts: Sequence[int]
    labels: Sequence[Mapping[str, str]] | range = field(hash=False)

    @classmethod
    def of_lines(cls, text: str, first: int = 1) -> Regions:
        """Return one region for each line of a text.

        Args:
            first: The number of the first line in the file.
        """
        starts = [0, *(match.end() for match in _LINE_END.finditer(text) if match.end() < len(text))]
        return cls(starts, range(first, first + len(starts)))

    def at(self, start: int, end: int) -> dict[str, str]:
        """Return the place of ``text[start:end]``, from its first to its last character."""
        first, last = bisect_right(self.starts, start) - 1, bisect_left(self.starts, max(end, start + 1)) - 1
        if last < 0:
            return {}
        found = self.labels[max(first, 0) : last + 1]
        labels = [{"lines": str(number)} for number in found] if isinstance(found, range) else found
        begin = {name: next(label[name] for label in labels if name in label) for name in {**labels[0], **labels[-1]}}
        return {name: _from_to(value, labels[-1].get(name, value)) for name, value in begin.items()}


def _from_to(first: str, last: str) -> str:
    """Return the range from one place to another: ``A2:C9`` for ``A2:C2`` and ``A9:C9``, ``3-5`` for 3 and 5."""
    if first == last:
        return first
    if _CELLS.fullmatch(first) and _CELLS.fullmatch(last):
        return f"{first.partition(':')[0]}:{last.partition(':')[2]}"
    return f"{first}-{last}"


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one file, or of one part of an archive or a mailbox.

    Attributes:
        text: The text. Spans of passages and headings are character offsets in this text.
        source: The path as the user gave it, or a name.
        metadata: ``title`` is the document's own title, if its format has one.
        pages: The first character of each page, if the format has pages.
        regions: The places of the text in the file, if the format has places other than pages.
        cut_at_lines: Whether passages are cut at empty lines and line ends, as in source code, instead of at sentences.
        code: Spans of code that has no markup in ``text``, such as preformatted text of HTML pages.
        warnings: Sentences for the user about missing content and about guesses, such as a guessed
            encoding.
        file: The file that the document was read from, or None.
    """

    text: str
    source: str
    metadata: Metadata = field(default_factory=dict, hash=False)
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()
    regions: Regions | None = None
    cut_at_lines: bool = False
    code: tuple[tuple[int, int], ...] = ()
    warnings: tuple[str, ...] = ()
    file: SourceFile | None = field(default=None, compare=False)

    def page(self, position: int) -> int | None:
        """Return the number of the page, from 1, that contains the character at ``position``; None without pages."""
        return bisect_right(self.pages, position) or None

    def location(self, start: int, end: int) -> dict[str, Any]:
        """Return the place of ``text[start:end]`` in the file, such as ``{"page": "3"}``.

        The result is empty if the document has no places. If the span covers several pages,
        ``page_starts`` lists where each page after the first begins, as an index into ``text``.

        Args:
            start: The first character.
        """
        first, last = self.page(start), self.page(max(start, end - 1))
        place: dict[str, Any] = dict(self.regions.at(start, end)) if self.regions else {}
        if first and last:
            place["page"] = _from_to(str(first), str(last))
            if last > first:
                place["page_starts"] = list(self.pages[first:last])
        return place
