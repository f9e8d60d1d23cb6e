"""An index folder as a place for passages: searched in this process, changed by whole generations.

Knows nothing of reranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

from antiphon.retrieval.collection import Where
from antiphon.retrieval.embed import Embedder
from antiphon.retrieval.embedders import resolve
from antiphon.retrieval.fuse import Fusion
from antiphon.retrieval.generation import IndexMismatch
from antiphon.retrieval.index import update_index
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.store import PassageTable, Store, read_store
from antiphon.retrieval.vectors import VectorIndex, Vectors

_Content = tuple[VectorIndex, PassageTable]
"""The two halves of one generation, replaced together."""


class LocalIndex:
    """The passages of a folder, as they were when it was opened, or changed here last; safe under threads.

    Every change writes the whole folder anew, and is durable when it returns: change many passages at once.

    Raises:
        ImportError: the index needs FAISS, which is not installed; says the command.
        RuntimeError: a GPU is asked for and FAISS finds none.
    """

    def __init__(self, store: Store, embedder: Embedder, *, gpu: bool = False) -> None:
        self._folder = store.folder
        self._embedder = embedder
        self._gpu = gpu
        self._lock = Lock()
        self._content: _Content = store.open_vectors(gpu=gpu), store.passages

    def __len__(self) -> int:
        return len(self._content[0])

    def nearest(self, vector: Vectors, k: int, where: Where | None = None) -> list[Passage]:
        """The ``k`` nearest passages, best first."""
        content = self._content
        return _read(content[1], _nearest(content, vector, k, where))

    def matching(self, question: str, k: int, where: Where | None = None) -> list[Passage]:
        """The passages that share words with a question, best first, with their BM25 scores."""
        passages = self._content[1]
        return _read(passages, _matching(passages, question, k, where))

    def fused(
        self, vector: Vectors, question: str, k: int, *, fusion: Fusion, candidates: int, where: Where | None = None
    ) -> list[Passage]:
        """The ``k`` best of both rankings; only these are read."""
        content = self._content
        dense = _nearest(content, vector, candidates, where)
        return _read(content[1], fusion(dense, _matching(content[1], question, candidates, where))[:k])

    def passage(self, identifier: str) -> Passage | None:
        """The passage of this id; None where there is none."""
        return self._content[1].of_id(identifier)

    def ids_of(self, source: str) -> list[str]:
        """The ids of the passages of a source, in the order in which they were put."""
        return self._content[1].ids_of(source)

    def sources(self) -> dict[str, int]:
        """The sources by name, and how many passages each has."""
        return self._content[1].sources()

    def put(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Put passages into the folder, all or none."""
        self._update(put=passages, vectors=vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Take the passages of these ids out of the folder."""
        self._update(remove=ids)

    def close(self) -> None:
        """There is no server to let go of."""

    def _update(
        self, *, put: Sequence[Passage] = (), vectors: Vectors | None = None, remove: Sequence[str] = ()
    ) -> None:
        with self._lock:
            update_index(self._folder, self._embedder, put=put, vectors=vectors, remove=remove)
            store = read_store(self._folder)
            self._content = store.open_vectors(gpu=self._gpu), store.passages


@dataclass(frozen=True, slots=True)
class _Row:
    """A passage that was found and not read yet, by its row."""

    id: int
    score: float | None


def _nearest(content: _Content, vector: Vectors, k: int, where: Where | None) -> list[_Row]:
    vectors, passages = content
    hits = vectors.search(vector[None, :], k, passages.allowed(where) if where else None)[0]
    return [_Row(*pair) for pair in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]


def _matching(passages: PassageTable, question: str, k: int, where: Where | None) -> list[_Row]:
    return [_Row(*pair) for pair in passages.matching(question, k, where)]


def _read(passages: PassageTable, rows: Sequence[_Row]) -> list[Passage]:
    texts = passages.fetch([row.id for row in rows])
    return [replace(passage, score=row.score) for passage, row in zip(texts, rows, strict=True)]


def same_embedder(store: Store, given: Embedder | None, device: str | None) -> Embedder:
    """The embedder that made an index: the one that is given, or the one of its name.

    Raises:
        IndexMismatch: that is not the one that made it, or cannot be had; names both.
    """
    embedder = given or _named(store, device)
    if embedder.fingerprint != store.fingerprint:
        raise IndexMismatch(
            f"The index in {store.folder} was made with the embedder {store.embedder} ({store.fingerprint}), which is "
            f"not {embedder.name} ({embedder.fingerprint}). Give that one, or make the index again."
        )
    return embedder


def _named(store: Store, device: str | None) -> Embedder:
    try:
        return resolve(store.embedder, device)
    except ValueError as error:
        raise IndexMismatch(
            f"The index in {store.folder} was made with the embedder {store.embedder}, which cannot be had by that "
            f"name here; hand it over as embedder=. ({error})"
        ) from error
