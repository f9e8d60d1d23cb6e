"""Passage: a piece of a document that is embedded, prompted and cited. Knows nothing of vectors or of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

TRAIL = " > "
"""What stands between the headings of ``metadata["title"]``, outermost first."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A span of a document's text: ``document.text[start:end] == text``.

    ``source`` is the path as the user gave it, or a name; ``start`` and ``end`` count characters.
    ``id`` is stable: the same text at the same place of the same source has the same id.
    ``score`` is set by a search (higher is better); ``metadata`` may hold ``title`` and ``page``.
    """

    text: str
    id: str
    source: str
    start: int
    end: int
    score: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def text_with_headings(self) -> str:
        """What is embedded, and read by a reranker: the text under the headings above it, where it has not got them."""
        text = self.text.lstrip("# \t")
        trail = [title for title in self.metadata.get("title", "").split(TRAIL) if title]
        above = [title for title in trail if not text.startswith(title)]
        return "\n".join([*([TRAIL.join(above)] if above else []), self.text])

    @classmethod
    def at(cls, source: str, start: int, text: str, metadata: Mapping[str, str] | None = None) -> Passage:
        """The passage that begins at character ``start`` of ``source``; its end and its id follow from that."""
        end = start + len(text)
        name = "\0".join((source, str(start), str(end), text))
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        return cls(text, digest, source, start, end, None, dict(metadata or {}))
