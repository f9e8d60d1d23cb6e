"""Document: the text of one file, and where its headings and pages begin. Knows nothing of files or of formats."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""A lone surrogate: Python's strings can hold it, and UTF-8 cannot."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of the characters ``start`` to ``end``, its markup included; level 1 is the outermost."""

    start: int
    end: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it is from; ``headings`` in reading order, ``pages`` the first character of each page.

    ``metadata["title"]`` is the document's own title, where its format has one.
    """

    text: str
    source: str
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()

    def page(self, position: int) -> int | None:
        """The number of the page, from 1, on which the character at ``position`` stands; None without pages."""
        return bisect_right(self.pages, position) or None
