"""References of a call: converted to passages, and hidden from traces, logs and saved messages.

Nothing is kept from one call to the next, so a call can never use another call's references.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr, model_serializer

from antiphon.retrieval import Passage

REFERENCES = "references"
"""The argument of a call, and the key in a message's ``additional_kwargs``, that holds references."""


class HiddenReferences(BaseModel):
    """Holds passages, but is printed and serialized as the word "references" and a digest.

    Frameworks copy the arguments and messages of a call into traces, events, logs and cache keys,
    where the text of references must not appear. References change the citations of an answer, so
    calls with different references must not share a cache entry: the digest tells them apart.
    Pickles and deep copies keep the passages.
    """

    model_config = ConfigDict(frozen=True)

    _passages: tuple[Passage, ...] = PrivateAttr(default=())

    def __init__(self, passages: Sequence[Passage]) -> None:
        super().__init__()
        self._passages = tuple(passages)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages that the object holds."""
        return self._passages

    @model_serializer
    def _serialize(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        fields = repr([astuple(passage) for passage in self._passages]).encode("utf-8", "surrogatepass")
        return f"{REFERENCES} {hashlib.blake2b(fields, digest_size=16).hexdigest()}"

    __str__ = __repr__


class References:
    """Finds and hides the references in the arguments and messages of a framework's calls.

    Args:
        passage_of: converts a text, a document or a node to a passage; returns None for anything else.
        alone: types that are iterable, but count as one item and not as a list.
        kinds: description of the accepted types, for error messages.
    """

    def __init__(self, passage_of: Callable[[object], Passage | None], alone: tuple[type, ...], kinds: str) -> None:
        self._passage_of = passage_of
        self._alone = (str, *alone)
        self._kinds = kinds

    def passages(self, given: object, name: str = REFERENCES) -> list[Passage]:
        """Convert the items of a list to passages.

        Args:
            given: the list, or `HiddenReferences`.

        Raises:
            TypeError: ``given`` is not a list, or an item cannot be converted.
        """
        if isinstance(given, HiddenReferences):
            return list(given.passages)
        if isinstance(given, self._alone) or not isinstance(given, Iterable):
            raise TypeError(f"{name} is of type {type(given).__name__}; give a list of {self._kinds}.")
        passages: list[Passage] = []
        for index, item in enumerate(given):
            passage = self._passage_of(item)
            if passage is None:
                raise TypeError(f"{name}[{index}] is of type {type(item).__name__}; give {self._kinds}.")
            passages.append(passage)
        return passages

    def of_call(self, arguments: Mapping[str, Any], messages: Iterable[Any] = ()) -> tuple[Passage, ...]:
        """Return the references of a call: first from its arguments, then from its messages."""
        given = (arguments.get(REFERENCES), *(message.additional_kwargs.get(REFERENCES) for message in messages))
        return tuple(passage for each in given if each is not None for passage in self.passages(each))

    def hidden(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Hide the references in the arguments of a call, or in a message's ``additional_kwargs``."""
        given = arguments.get(REFERENCES)
        return {**arguments} if given is None else {**arguments, REFERENCES: HiddenReferences(self.passages(given))}
