"""Use an index folder as a collection: searches run in this process, and each change rewrites the whole folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import numpy as np

from antiphon.retrieval.collection import require_embedder
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.filters import MetadataFilter
from antiphon.retrieval.folder_indexing import update_index
from antiphon.retrieval.fusion import Fusion
from antiphon.retrieval.index_folder.generations import index_version
from antiphon.retrieval.index_folder.store import PassageTable, StoredIndex, read_index
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vector_index.build import LocalVectorIndex
from antiphon.retrieval.vector_index.flat import StoredVectors, Vectors, normalized

logger = logging.getLogger("antiphon.retrieval")

_Content = tuple[LocalVectorIndex, PassageTable, StoredVectors]
"""The vector index, the passages and the vectors of one generation, which are replaced together."""


class LocalIndex:
    """The passages of an index folder. Thread-safe.

    If another object or process has replaced the index, the next search first reads the new index.
    Meanwhile, other searches use the previous index. If the new index cannot be read, the previous
    one stays in use and `stale` has the reason.

    Change many passages at once, because every change rewrites the whole folder. A change is durable when the call
    returns.
    """

    def __init__(self, store: StoredIndex, embedder: Embedder) -> None:
        self._folder = store.folder
        self._embedder = embedder
        self._lock = Lock()
        self._stale = ""
        self._version = index_version(store.folder)
        self._content: _Content = store.open_vectors(), store.passages, store.vectors
        if self._version[0] != store.files.name:  # replaced since it was read
            self._version = ("", "")

    def __len__(self) -> int:
        return len(self._current()[0])

    @property
    def folder(self) -> Path:
        """The index folder."""
        return self._folder

    @property
    def stale(self) -> str:
        """Why the newest index on disk is not used; empty if it is used."""
        self._current()
        return self._stale

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` nearest passages. See `PassageIndex.vector_search`."""
        content = self._current()
        return _read(content[1], _nearest(content, vector, k, where))

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return passages that share words with a question, with BM25 scores. See `PassageIndex.keyword_search`."""
        passages = self._current()[1]
        return _read(passages, _matching(passages, question, k, where))

    def hybrid_search(
        self,
        vector: Vectors,
        question: str,
        k: int,
        *,
        fusion: Fusion,
        candidates: int,
        where: MetadataFilter | None = None,
    ) -> list[Passage]:
        """Return the ``k`` best passages of both rankings. See `HybridIndex.hybrid_search`."""
        content = self._current()
        dense = _nearest(content, vector, candidates, where)
        found = fusion(dense, _matching(content[1], question, candidates, where))[:k]
        return _read(content[1], _with_similarities(content, vector, found))

    def passage(self, identifier: str) -> Passage | None:
        """Return the passage with this id, or None."""
        return self._current()[1].of_id(identifier)

    def ids_of(self, source: str) -> list[str]:
        """Return the ids of the passages of a source, in the order of insertion."""
        return self._current()[1].ids_of(source)

    def sources(self) -> dict[str, int]:
        """Return, for each source, its number of passages. The result is sorted by source."""
        return self._current()[1].sources()

    def upsert(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Insert or replace passages, all or none. See `Collection.upsert`."""
        self._update(upsert=passages, vectors=vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages with these ids."""
        self._update(remove=ids)

    def _update(
        self, *, upsert: Sequence[Passage] = (), vectors: Vectors | None = None, remove: Sequence[str] = ()
    ) -> None:
        with self._lock:
            update_index(self._folder, self._embedder, upsert=upsert, vectors=vectors, remove=remove)
            self._read(index_version(self._folder))

    def _current(self) -> _Content:
        """Return the content of the index; first read a new index, unless another thread is reading it."""
        version = index_version(self._folder)
        if version != self._version and self._lock.acquire(blocking=False):
            try:
                self._read(version)
            except (OSError, ValueError, ImportError, RuntimeError) as error:
                self._version, self._stale = version, str(error)
                logger.warning(
                    "the index in %s was replaced, but the previous one stays in use: %s", self._folder, error
                )
            finally:
                self._lock.release()
        return self._content

    def _read(self, version: tuple[str, str]) -> None:
        store = read_index(self._folder)
        require_embedder(self._folder, store.embedder, store.fingerprint, self._embedder)
        self._content = store.open_vectors(), store.passages, store.vectors
        self._version, self._stale = version, ""


@dataclass(frozen=True, slots=True)
class _Row:
    """The row of a found passage whose text is not read yet."""

    id: int
    score: float | None
    similarity: float | None = None


def _nearest(content: _Content, vector: Vectors, k: int, where: MetadataFilter | None) -> list[_Row]:
    vectors, passages, _ = content
    hits = vectors.search(vector[None, :], k, passages.allowed(where) if where else None)[0]
    return [_Row(row, score, score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]


def _with_similarities(content: _Content, vector: Vectors, rows: Sequence[_Row]) -> list[_Row]:
    """Add the cosines of the rows that only the keyword search found; return all rows."""
    missing = [row.id for row in rows if row.similarity is None]
    if not missing:
        return list(rows)
    query = normalized(vector[None, :])[0]
    stored = normalized(np.asarray(content[2][missing], np.float32))
    cosines = dict(zip(missing, (float(each @ query) for each in stored), strict=True))
    return [replace(row, similarity=cosines.get(row.id, row.similarity)) for row in rows]


def _matching(passages: PassageTable, question: str, k: int, where: MetadataFilter | None) -> list[_Row]:
    return [_Row(*pair) for pair in passages.keyword_search(question, k, where)]


def _read(passages: PassageTable, rows: Sequence[_Row]) -> list[Passage]:
    texts = passages.fetch([row.id for row in rows])
    return [
        replace(passage, score=row.score, similarity=row.similarity) for passage, row in zip(texts, rows, strict=True)
    ]
