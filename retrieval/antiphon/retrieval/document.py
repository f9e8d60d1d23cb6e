"""A document: the text of one file, its headings, and where its pages start."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Matches a lone surrogate, which Python strings can contain but UTF-8 cannot encode."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its characters ``start`` to ``end`` with markup, its title, and its level (1 is the outermost)."""

    start: int
    end: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one file.

    Attributes:
        text: The text. Spans of passages and headings count its characters.
        source: The path as the user gave it, or a name.
        metadata: ``title`` is the document's own title, if its format has one.
        headings: The headings in reading order.
        pages: The first character of each page, if the format has pages.
    """

    text: str
    source: str
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()

    def page(self, position: int) -> int | None:
        """Return the number of the page, from 1, that contains the character at ``position``; None without pages."""
        return bisect_right(self.pages, position) or None
