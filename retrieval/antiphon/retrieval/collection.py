"""What a place for passages must do, on this machine or on somebody else's server. Knows nothing of models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

from antiphon.retrieval.fuse import Fusion
from antiphon.retrieval.generation import IndexMismatch
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vectors import Vectors

Where = Mapping[str, str]
"""Which passages may be found: those whose ``source``, or whose metadata of that name, is this very text."""

TIMEOUT = 30.0
"""Seconds that a server has for an answer; for a connection it has a third of them."""

FIELDS = ("id", "text", "source", "start", "end", "metadata")
"""What a server keeps of a passage."""

Item = TypeVar("Item")


class EngineUnavailable(ConnectionError):  # noqa: N818
    """A server does not answer, or not in time; the message names it."""


class PassageIndex(Protocol):
    """Passages that can be found by vector and by words."""

    def nearest(self, vector: Vectors, k: int, where: Where | None = None) -> list[Passage]:
        """The ``k`` passages nearest to a vector of shape (dim,), with their cosines as scores, best first.

        With ``where`` they are the nearest of those that it allows, and there may be fewer.
        """

    def matching(self, question: str, k: int, where: Where | None = None) -> list[Passage]:
        """At most ``k`` passages that share words with a question, with scores such as BM25's, best first.

        An index that knows no words finds none.
        """


@runtime_checkable
class FusingIndex(PassageIndex, Protocol):
    """A passage index that fuses its two rankings itself, and reads only the passages that remain."""

    def fused(
        self, vector: Vectors, question: str, k: int, *, fusion: Fusion, candidates: int, where: Where | None = None
    ) -> list[Passage]:
        """The ``k`` best of what `nearest` and `matching` find with ``candidates`` each, by ``fusion``."""


@runtime_checkable
class Collection(PassageIndex, Protocol):
    """A passage index that changes: a folder, or a collection of a server."""

    def __len__(self) -> int:
        """How many passages there are."""

    def put(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Put passages in, with vectors of shape (passages, dim); one whose id is there is replaced."""

    def remove(self, ids: Sequence[str]) -> None:
        """Take out the passages of these ids; ids that are not there do no harm."""

    def close(self) -> None:
        """Let go of the server; the passages stay."""


def last_of_each_id(passages: Sequence[Passage], vectors: Vectors) -> tuple[list[Passage], Vectors]:
    """One passage for each id, the last one given, and their vectors.

    Raises:
        ValueError: there are not as many vectors as passages.
    """
    if len(passages) != len(vectors):
        raise ValueError(f"{len(passages)} passages and {len(vectors)} vectors; each passage needs one.")
    places = sorted({passage.id: place for place, passage in enumerate(passages)}.values())
    return [passages[place] for place in places], vectors[places]


def passage_fields(passage: Passage) -> dict[str, Any]:
    """What a server keeps of the passage, by the names of `FIELDS`."""
    return {name: getattr(passage, name) for name in FIELDS} | {"metadata": dict(passage.metadata)}


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in pieces that a server takes at once."""
    return (items[first : first + size] for first in range(0, len(items), size))


def checked_where(where: Where | None) -> dict[str, str]:
    """The conditions of a filter.

    Raises:
        TypeError: they are no texts by name.
    """
    conditions = dict(where or {})
    for name, value in conditions.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"where asks for {name!r} = {value!r}; both are texts, as in a passage's metadata.")
    return conditions


def require_same_embedder(collection: str, made_by: str, embedder: str) -> None:
    """Refuse a collection whose vectors another embedder made.

    Raises:
        IndexMismatch: the fingerprints differ; names both.
    """
    if made_by != embedder:
        raise IndexMismatch(
            f"{collection} holds vectors of the embedder {made_by or 'without a name'}, which is not {embedder}. "
            "Give that one, or another name for the collection."
        )


def without_userinfo(text: str) -> str:
    """The text, with no name and no password before the host of any address in it."""
    return re.sub(r"://[^/?#\s]*@", "://", text)


@contextmanager
def closed_if_it_fails(collection: Collection) -> Iterator[None]:
    """Close a collection whose making fails."""
    try:
        yield
    except BaseException:
        collection.close()
        raise


@contextmanager
def answering(
    server: str, failures: tuple[type[Exception], ...], is_gone: Callable[[Exception], bool] = lambda error: True
) -> Iterator[None]:
    """Turn what a client raises when its server cannot be reached in time into one error that names the server.

    Names and passwords in addresses are removed from the message.

    Raises:
        EngineUnavailable: one of ``failures`` was raised, and ``is_gone`` says that it means this.
    """
    try:
        yield
    except failures as error:
        if not is_gone(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        message = f"{server} does not answer: {reason}. Is it running, and is this its address?"
        raise EngineUnavailable(without_userinfo(message)) from error
