"""A passage: the span of a document that is embedded, searched, put into prompts and cited."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon.retrieval.document import Metadata
from antiphon.retrieval.keywords import with_plain_letters

TRAIL = " > "
"""The separator of the headings in ``metadata["title"]``, outermost first."""

COLUMN_NAMES = "column_names"
"""The metadata key of column names, ``A | B``, for passages that begin below a table's header."""

DOCUMENT_TITLE = "document_title"
"""The metadata key of the document's title, if the headings above the passage do not contain it."""

CODE_SPANS = "code_spans"
"""The metadata key of spans of code, in the document, that the passage's text does not show."""

PLACES = ("page", "sheet", "cells", "rows", "slide", "cell", "record", "message", "lines")
"""The metadata keys of a passage's place in its file, in the order of display.

A passage on several pages also has ``page_starts``: where each page after the first one begins, as
an index into the document's text.
"""


@dataclass(frozen=True, slots=True)
class Passage:
    """A span of a document's text: ``document.text[start:end] == text``.

    Attributes:
        id: An identifier, which depends only on the source, the span and the text.
        source: The path as the user gave it, or a name.
        start: The index of the passage's first character in the document.
        end: The index after the passage's last character.
        score: The score that a search has set; higher is better. See `Retriever.search`.
        metadata: JSON values and dates, such as ``title`` (headings), `COLUMN_NAMES` and `PLACES`.
        similarity: The cosine of question and passage; None if it was not computed.
        also_in: The sources of passages that a search left out because they repeat this passage.
    """

    text: str
    id: str
    source: str
    start: int
    end: int
    score: float | None = None
    metadata: Metadata = field(default_factory=dict, hash=False)
    similarity: float | None = field(default=None, compare=False)
    also_in: tuple[str, ...] = field(default=(), compare=False)

    @property
    def location(self) -> str:
        """The place in the file for display, such as ``page 3`` or ``sheet Costs, cells A2:C9``; may be empty."""
        return ", ".join(f"{name} {self.metadata[name]}" for name in PLACES if self.metadata.get(name))

    def location_of(self, start: int, end: int) -> str:
        """Return the place of a part of the passage in the file, such as pages or lines.

        Args:
            start: The first character of the part in the document.
        """
        positions, places = (start, max(start, end - 1)), dict(self.metadata)
        breaks, lines = places.get("page_starts"), str(places.get("lines") or "").partition("-")[0]
        if isinstance(breaks, (list, tuple)):
            first = int(str(places["page"]).partition("-")[0])
            places["page"] = _range([first + sum(at <= position for at in breaks) for position in positions])
        if lines.isdecimal():
            counts = [self.text.count("\n", 0, position - self.start) for position in positions]
            places["lines"] = _range([int(lines) + count for count in counts])
        return replace(self, metadata=places).location

    @property
    def text_with_headings(self) -> str:
        """The text for embedders and rerankers: headings, column names and the passage.

        Headings at the passage's start are not repeated. Letters are composed, without ligatures.
        """
        text = self.text.lstrip("# \t")
        trail = [title for title in str(self.metadata.get("title") or "").split(TRAIL) if title]
        above = TRAIL.join(title for title in trail if not text.startswith(title))
        return with_plain_letters("\n".join(filter(None, [above, self.column_names, self.text])))

    @property
    def column_names(self) -> str:
        """The names of the columns, ``A | B``, if the passage begins below the header of a table; else empty."""
        names = self.metadata.get(COLUMN_NAMES)
        return names if isinstance(names, str) else ""

    @property
    def code_spans(self) -> list[tuple[int, int]]:
        """The spans of ``text`` that are code without markup, from HTML or from a cut block."""
        found = self.metadata.get(CODE_SPANS)
        spans = found if isinstance(found, (list, tuple)) else ()
        return [
            (span[0] - self.start, span[1] - self.start)
            for span in spans
            if isinstance(span, (list, tuple)) and len(span) == 2 and all(isinstance(each, int) for each in span)
        ]

    @classmethod
    def at(cls, source: str, start: int, text: str, metadata: Metadata | None = None) -> Passage:
        """Create a passage from its position; end and id are computed.

        Args:
            start: The first character of the passage in the document.
        """
        end = start + len(text)
        name = "\0".join((source, str(start), str(end), text))
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        return cls(text, digest, source, start, end, None, dict(metadata or {}))


def _range(numbers: Sequence[int]) -> str:
    return "-".join(map(str, sorted(set(numbers))))
