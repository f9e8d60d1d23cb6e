"""Items with vectors, by id, searched by cosine. Independent of frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Generic, TypeVar

import numpy as np

from antiphon.retrieval import VectorIndex, build_vector_index
from antiphon.retrieval.vector_index.flat import Vectors, normalized

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class VectorHit(Generic[Item]):
    """One result of a search.

    Attributes:
        id: the item's id.
        item: the item.
        score: its cosine.
        vector: its unit vector, shape (dim,).
    """

    id: str
    item: Item
    score: float
    vector: Vectors


class VectorTable(Generic[Item]):
    """An item and a vector for each id; thread-safe.

    Search is exact. Without a filter the index is built once and kept until the table changes; with a filter it is
    built from the items that pass.
    """

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._vectors: dict[str, Vectors] = {}
        self._index: tuple[VectorIndex, list[str]] | None = None
        self._lock = RLock()

    def __getstate__(self) -> tuple[dict[str, Item], dict[str, Vectors]]:
        """Return items and vectors; lock and index are created again."""
        with self._lock:
            return dict(self._items), dict(self._vectors)

    def __setstate__(self, state: tuple[dict[str, Item], dict[str, Vectors]]) -> None:
        """Restore items and vectors."""
        self.__init__()  # type: ignore[misc]
        self._items, self._vectors = state

    def __len__(self) -> int:
        return len(self._items)

    def put(self, ids: Sequence[str], items: Sequence[Item], vectors: Vectors) -> None:
        """Add items, replacing those with the same ids.

        Args:
            ids: one per item.
            items: the items.
            vectors: shape (items, dim); they are normalized.
        """
        checked = normalized(vectors)
        with self._lock:
            for identifier, item, vector in zip(ids, items, checked, strict=True):
                self._items[identifier] = item
                self._vectors[identifier] = vector
            self._index = None

    def remove(self, ids: Iterable[str]) -> None:
        """Remove the items with these ids; unknown ids are ignored."""
        with self._lock:
            for identifier in list(ids):
                self._items.pop(identifier, None)
                self._vectors.pop(identifier, None)
            self._index = None

    def items(self) -> list[tuple[str, Item]]:
        """Return all ids and items in insertion order."""
        with self._lock:
            return list(self._items.items())

    def rows(self) -> list[tuple[Item, Vectors]]:
        """Return all items and their vectors in insertion order."""
        with self._lock:
            return [(item, self._vectors[identifier]) for identifier, item in self._items.items()]

    def get(self, ids: Iterable[str]) -> list[Item]:
        """Return the items with these ids; unknown ids are ignored."""
        with self._lock:
            return [self._items[identifier] for identifier in ids if identifier in self._items]

    def nearest(
        self, vector: Sequence[float], k: int, wanted: Callable[[str, Item], bool] | None = None
    ) -> list[VectorHit[Item]]:
        """Return the ``k`` nearest items, or all if there are fewer, best first.

        Args:
            vector: the query, shape (dim,).
            k: maximum number of results.
            wanted: filter of id and item; None accepts all.
        """
        with self._lock:
            ids = None if wanted is None else [each for each, item in self._items.items() if wanted(each, item)]
            if not self._items or ids == []:
                return []
            index, ids = self._searchable() if ids is None else (self._build(ids), ids)
            hits = index.search(np.array([vector], np.float32), k)[0]
            return [
                VectorHit(ids[row], self._items[ids[row]], float(score), self._vectors[ids[row]])
                for row, score in zip(hits.rows, hits.scores, strict=True)
            ]

    def _searchable(self) -> tuple[VectorIndex, list[str]]:
        if self._index is None:
            ids = list(self._items)
            self._index = self._build(ids), ids
        return self._index

    def _build(self, ids: list[str]) -> VectorIndex:
        return build_vector_index(np.stack([self._vectors[each] for each in ids]))
