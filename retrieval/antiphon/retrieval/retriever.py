"""Question in, passages out: embed, search, fuse, rerank in one call. Knows nothing of language models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon.retrieval.collection import Collection, FusingIndex, PassageIndex, Where
from antiphon.retrieval.embed import Embedder
from antiphon.retrieval.fuse import Fusion, convex
from antiphon.retrieval.local_index import LocalIndex, same_embedder
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.rerank import Reranker
from antiphon.retrieval.rerankers import resolve_reranker
from antiphon.retrieval.store import read_store

CANDIDATES = 100
"""How many passages of each ranking are fused."""


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
        embedder = same_embedder(store, embedder, device)
        index = LocalIndex(store, embedder, gpu=gpu)
        suited = resolve_reranker(
            reranker, embedder, token_counts=store.token_counts, passages=len(index), device=device
        )
        return cls(index, embedder, suited, fusion=fusion)

    def search(self, question: str, k: int = 5, *, where: Where | None = None) -> list[Passage]:
        """The ``k`` best passages, best first, with their scores; all of them if there are fewer.

        ``where`` allows only passages with these metadata, or of this ``source``. Scores compare passages of one
        question; on which scale they are depends on fusion and reranker.

        Raises:
            TypeError: the question is not a string, or a condition is no text.
            ValueError: the question is empty, or ``k`` is no whole number from 1.
            EngineUnavailable: the index is on a server that does not answer.
        """
        _check(question, k)
        count = max(k, self.reranker.depth) if self.reranker else k
        found = self._candidates(question, count, where)
        return (self.reranker.rerank(question, found) if self.reranker else found)[:k]

    def add(self, passages: Sequence[Passage]) -> None:
        """Embed passages and put them into the index; those whose ids are there are replaced.

        Raises:
            TypeError: the index cannot be changed.
            EngineUnavailable: the index is on a server that does not answer.
        """
        vectors = self.embedder.embed_documents([passage.text_with_headings for passage in passages])
        self._collection().put(passages, vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Take the passages of these ids out of the index; ids that are not there do no harm.

        Raises:
            TypeError: the index cannot be changed.
            EngineUnavailable: the index is on a server that does not answer.
        """
        self._collection().remove(ids)

    def _collection(self) -> Collection:
        if not isinstance(self.index, Collection):
            raise TypeError(f"The index is {type(self.index).__name__}, which is searched only; change it where it is.")
        return self.index

    def _candidates(self, question: str, count: int, where: Where | None) -> list[Passage]:
        vector = self.embedder.embed_queries([question])[0]
        if self.fusion is None:
            return self.index.nearest(vector, count, where)
        many = max(count, CANDIDATES)
        if isinstance(self.index, FusingIndex):
            return self.index.fused(vector, question, count, fusion=self.fusion, candidates=many, where=where)
        return self.fusion(self.index.nearest(vector, many, where), self.index.matching(question, many, where))[:count]


def _check(question: str, k: int) -> None:
    if not isinstance(question, str):
        raise TypeError(f"The question is {type(question).__name__}; a string is needed.")
    if not question.strip():
        raise ValueError("The question is empty; ask something.")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r}; the number of passages is a whole number from 1.")
