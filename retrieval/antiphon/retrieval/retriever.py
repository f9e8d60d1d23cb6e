"""Question in, passages out: embed, search, fuse, rerank in one call. Knows nothing of language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from antiphon.retrieval.embed import Embedder, resolve
from antiphon.retrieval.fuse import Fusion, convex
from antiphon.retrieval.generation import IndexMismatch
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.rerank import Reranker, resolve_reranker
from antiphon.retrieval.store import PassageTable, Store, read_store
from antiphon.retrieval.vectors import VectorIndex, Vectors

CANDIDATES = 100
"""How many passages of each ranking are fused."""


class PassageIndex(Protocol):
    """Passages that can be found by vector and by words: a folder on this machine, or somebody else's server."""

    def __len__(self) -> int:
        """How many passages there are."""

    def nearest(self, vector: Vectors, k: int) -> list[Passage]:
        """The ``k`` passages nearest to a vector of shape (dim,), with their cosines as scores, best first."""

    def matching(self, question: str, k: int) -> list[Passage]:
        """At most ``k`` passages that share words with a question, with scores such as BM25's, best first.

        An index that knows no words finds none.
        """


class LocalIndex:
    """A vector index, and the table of passages that its rows mean."""

    def __init__(self, vectors: VectorIndex, passages: PassageTable) -> None:
        self._vectors = vectors
        self._passages = passages

    def __len__(self) -> int:
        return len(self._vectors)

    def nearest(self, vector: Vectors, k: int) -> list[Passage]:
        """The ``k`` nearest passages, best first."""
        hits = self._vectors.search(vector[None, :], k)[0]
        return self._scored(hits.rows.tolist(), hits.scores.tolist())

    def matching(self, question: str, k: int) -> list[Passage]:
        """The passages that share words with a question, best first, with their BM25 scores."""
        found = self._passages.matching(question, k)
        return self._scored([row for row, _ in found], [score for _, score in found])

    def _scored(self, rows: Sequence[int], scores: Sequence[float]) -> list[Passage]:
        passages = self._passages.fetch(rows)
        return [replace(passage, score=score) for passage, score in zip(passages, scores, strict=True)]


class Retriever:
    """Finds the passages that answer a question: near to it in meaning, sharing its words, or both.

    ``fusion`` makes one ranking of the two; without it only vectors are searched.
    """

    def __init__(
        self,
        index: PassageIndex,
        embedder: Embedder,
        reranker: Reranker | None = None,
        *,
        fusion: Fusion | None = convex,
    ) -> None:
        self.index = index
        self.embedder = embedder
        self.reranker = reranker
        self.fusion = fusion

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        reranker: Reranker | str | None = "auto",
        fusion: Fusion | None = convex,
        device: str | None = None,
        embedder: Embedder | None = None,
        gpu: bool = False,
    ) -> Retriever:
        """Open an index with the embedder that made it; ``embedder`` is needed only if that has no known name.

        ``device`` is where models run; with ``gpu`` FAISS searches on its first GPU too.

        Raises:
            IndexNotFound: the folder holds no index.
            IndexCorrupt: a file of it is missing or damaged.
            IndexMismatch: the embedder is not the one that made it.
            ImportError: a package that it needs is not installed; says the command.
            RuntimeError: ``gpu`` is asked for and FAISS finds none.
        """
        store = read_store(folder)
        embedder = _same_embedder(store, embedder, device)
        index = LocalIndex(store.open_vectors(gpu=gpu), store.passages)
        suited = resolve_reranker(
            reranker, embedder, token_counts=store.token_counts, passages=len(index), device=device
        )
        return cls(index, embedder, suited, fusion=fusion)

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """The ``k`` best passages, best first, with their scores; all of them if there are fewer.

        Scores compare passages of one question; on which scale they are depends on fusion and reranker.

        Raises:
            TypeError: the question is not a string.
            ValueError: the question is empty, or ``k`` is no whole number from 1.
        """
        _check(question, k)
        count = max(k, self.reranker.depth) if self.reranker else k
        found = self._candidates(question, count)
        return (self.reranker.rerank(question, found) if self.reranker else found)[:k]

    def _candidates(self, question: str, count: int) -> list[Passage]:
        vector = self.embedder.embed_queries([question])[0]
        if self.fusion is None:
            return self.index.nearest(vector, count)
        many = max(count, CANDIDATES)
        return self.fusion(self.index.nearest(vector, many), self.index.matching(question, many))[:count]


def _check(question: str, k: int) -> None:
    if not isinstance(question, str):
        raise TypeError(f"The question is {type(question).__name__}; a string is needed.")
    if not question.strip():
        raise ValueError("The question is empty; ask something.")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r}; the number of passages is a whole number from 1.")


def _same_embedder(store: Store, given: Embedder | None, device: str | None) -> Embedder:
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
