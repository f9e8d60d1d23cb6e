"""Passages that travel with a call and show nothing of their text in traces, logs and saved messages."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, PrivateAttr, model_serializer

from antiphon.retrieval import Passage

REFERENCES = "references"
"""The argument of a call, and the key in a message's ``additional_kwargs``, that holds references."""


class HiddenReferences(BaseModel):
    """Holds passages; it prints and serializes as the word "references".

    Frameworks copy the arguments and messages of a call into traces, events and logs, where the text of references must
    not appear. Pickles and deep copies keep the passages.

    Args:
        passages: the passages to hold.
    """

    model_config = ConfigDict(frozen=True)

    _passages: tuple[Passage, ...] = PrivateAttr(default=())

    def __init__(self, passages: Sequence[Passage]) -> None:
        super().__init__()
        self._passages = tuple(passages)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages."""
        return self._passages

    @model_serializer
    def _serialize(self) -> str:
        return REFERENCES

    def __repr__(self) -> str:
        return REFERENCES

    __str__ = __repr__
