"""Things and their vectors, by id: put, removed, and found by cosine. Knows no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Generic, TypeVar

import numpy as np

from antiphon.retrieval import VectorIndex, build_vector_index
from antiphon.retrieval.vector_index.flat import Vectors, normalized

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Found(Generic[Thing]):
    """What a search found: the id, what has it, its cosine, and its vector."""

    id: str
    thing: Thing
    score: float
    vector: Vectors


class Table(Generic[Thing]):
    """A thing and a vector for each id; safe under threads.

    The search is exact. Without a filter its index is made once and kept until something changes; with one it is made
    of what the filter leaves.
    """

    def __init__(self) -> None:
        self._things: dict[str, Thing] = {}
        self._vectors: dict[str, Vectors] = {}
        self._index: tuple[VectorIndex, list[str]] | None = None
        self._lock = RLock()

    def __getstate__(self) -> tuple[dict[str, Thing], dict[str, Vectors]]:
        """What it holds; its lock and its index are made anew."""
        with self._lock:
            return dict(self._things), dict(self._vectors)

    def __setstate__(self, state: tuple[dict[str, Thing], dict[str, Vectors]]) -> None:
        """The same table again."""
        self.__init__()  # type: ignore[misc]
        self._things, self._vectors = state

    def __len__(self) -> int:
        return len(self._things)

    def put(self, ids: Sequence[str], things: Sequence[Thing], vectors: Vectors) -> None:
        """Put things in their places; what has the same id is replaced. ``vectors`` has the shape (things, dim)."""
        checked = normalized(vectors)
        with self._lock:
            for identifier, thing, vector in zip(ids, things, checked, strict=True):
                self._things[identifier] = thing
                self._vectors[identifier] = vector
            self._index = None

    def remove(self, ids: Iterable[str]) -> None:
        """Remove what has these ids; ids that are not there do no harm."""
        with self._lock:
            for identifier in list(ids):
                self._things.pop(identifier, None)
                self._vectors.pop(identifier, None)
            self._index = None

    def items(self) -> list[tuple[str, Thing]]:
        """All ids and their things, in the order in which they came."""
        with self._lock:
            return list(self._things.items())

    def rows(self) -> list[tuple[Thing, Vectors]]:
        """All things and their vectors, in the same order."""
        with self._lock:
            return [(thing, self._vectors[identifier]) for identifier, thing in self._things.items()]

    def get(self, ids: Iterable[str]) -> list[Thing]:
        """The things of these ids, as far as they are there."""
        with self._lock:
            return [self._things[identifier] for identifier in ids if identifier in self._things]

    def nearest(
        self, vector: Sequence[float], k: int, wanted: Callable[[str, Thing], bool] | None = None
    ) -> list[Found[Thing]]:
        """The ``k`` nearest of what is wanted, all of it if there is less; best first."""
        with self._lock:
            ids = None if wanted is None else [each for each, thing in self._things.items() if wanted(each, thing)]
            if not self._things or ids == []:
                return []
            index, ids = self._searchable() if ids is None else (self._made(ids), ids)
            hits = index.search(np.array([vector], np.float32), k)[0]
            return [
                Found(ids[row], self._things[ids[row]], float(score), self._vectors[ids[row]])
                for row, score in zip(hits.rows, hits.scores, strict=True)
            ]

    def _searchable(self) -> tuple[VectorIndex, list[str]]:
        if self._index is None:
            ids = list(self._things)
            self._index = self._made(ids), ids
        return self._index

    def _made(self, ids: list[str]) -> VectorIndex:
        return build_vector_index(np.stack([self._vectors[each] for each in ids]))
