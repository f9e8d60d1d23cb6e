"""Passages that go with a call and show nothing of themselves to whoever prints, traces or saves it."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.retrieval import Passage

REFERENCES = "references"
"""The argument of a call, and the key of a message's ``additional_kwargs``, that hold references."""


class OpaqueReferences(str):
    """The word "references" to everybody, and ``passages`` to who asks for them; so it fits wherever text does."""

    passages: tuple[Passage, ...]

    def __new__(cls, passages: Sequence[Passage]) -> OpaqueReferences:
        """The word, with passages behind it."""
        opaque = super().__new__(cls, REFERENCES)
        opaque.passages = tuple(passages)
        return opaque
