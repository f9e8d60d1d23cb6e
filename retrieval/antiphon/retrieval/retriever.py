"""Find the passages that answer a question: embed the question, search, fuse two rankings, rerank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from antiphon.retrieval.collection import Collection, HybridIndex, PassageIndex
from antiphon.retrieval.document_role import exact_tokens_first, records_last
from antiphon.retrieval.duplicates import merge_duplicates
from antiphon.retrieval.embedders.protocol import Embedder, TokenEmbedder
from antiphon.retrieval.filters import MetadataFilter
from antiphon.retrieval.fusion import Fusion, convex_combination
from antiphon.retrieval.keywords import with_plain_letters
from antiphon.retrieval.local_index import LocalIndex
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.postgres.index import PostgresIndex
from antiphon.retrieval.rerankers.by_name import load_reranker
from antiphon.retrieval.rerankers.protocol import Reranker, falling
from antiphon.retrieval.stored import Stored, embedder_of_index, read_stored
from antiphon.retrieval.token_counts import token_counts
from antiphon.retrieval.vector_index.flat import Vectors, normalized

CANDIDATES = 100
"""The number of passages that each ranking contributes to the fusion."""

MAX_CANDIDATES = 4096
"""A search for distinct passages ends at this many candidates, because databases limit results."""


class Retriever:
    """Finds the passages that answer a question, by vector similarity, keywords, or both.

    Args:
        reranker: Reorders the best candidates. None: no reranking.
        fusion: Merges the rankings of vector search and keyword search. None: vector search only.
    """

    def __init__(
        self,
        index: PassageIndex,
        embedder: Embedder,
        reranker: Reranker | None = None,
        *,
        fusion: Fusion | None = convex_combination,
    ) -> None:
        self.index = index
        self.embedder = embedder
        self.reranker = reranker
        self.fusion = fusion

    @classmethod
    def open(
        cls,
        location: str | Path | Stored,
        *,
        reranker: Reranker | str | None = "auto",
        fusion: Fusion | None = convex_combination,
        device: str | None = None,
        embedder: Embedder | None = None,
    ) -> Retriever:
        """Open an index with the embedder that made it.

        Args:
            location: The folder of an index, the address of a table of PostgreSQL, or the result of `read_stored`.
            reranker: A reranker, or its name; see `load_reranker`. None: no reranking.
            fusion: Merges the rankings of vector search and keyword search. None: vector search only.
            device: Where models run, such as ``cuda`` or ``cpu``. None: a GPU if there is one.
            embedder: The embedder that made the index; needed only if it cannot be loaded by its name.

        Raises:
            IndexNotFound: There is no index.
            IndexCorrupt: A file of the index is missing or damaged.
            IndexMismatch: Another embedder made the index.
            ImportError: A package is missing; the message has the command.
            ValueError: The address is malformed.
            DatabaseUnavailable: The database server does not answer, or refuses the connection.
        """
        store = read_stored(location) if isinstance(location, str | Path) else location
        embedder = embedder_of_index(store, embedder, device)
        index: LocalIndex | PostgresIndex
        if isinstance(store, PostgresIndex):
            index = store
            texts = [passage.text_with_headings for passage in store.sample()]
            counts, count = token_counts(texts, embedder) if isinstance(embedder, TokenEmbedder) else None, len(texts)
        else:
            index = LocalIndex(store, embedder)
            counts, count = store.token_counts, len(index)
        suited = load_reranker(reranker, embedder, token_counts=counts, passages=count, device=device)
        return cls(index, embedder, suited, fusion=fusion)

    def search(
        self,
        question: str,
        k: int = 5,
        *,
        where: MetadataFilter | None = None,
        on_stage: Callable[[str], None] | None = None,
    ) -> list[Passage]:
        """Return the ``k`` best passages with their scores, best first.

        The score is the cosine of question and passage, or 0 if the cosine is negative. Scores can
        be compared between questions, and between indexes of one embedder. Keywords and the
        reranker only change the order. If a passage is ranked above more similar passages, it gets
        the score of the most similar passage below it.

        Passages that repeat a better passage are left out, and the better passage's ``also_in`` has
        their sources. Passages of changelogs, issue lists and tests come last, unless the question
        may be about changes (see `records_last`). If keywords are searched, passages with the
        question's versions, options or names in code come first.

        Args:
            k: Number of passages to return; all are returned if there are fewer.
            where: Only passages that match this filter are searched.
            on_stage: Called with the name of each stage when it starts: "embed" (the question), "search" (the index),
                "rerank" (the candidates, even without a reranker).

        Raises:
            TypeError: The question is not a string, or a part of the filter has a wrong type.
            ValueError: The question is empty, ``k`` is not an integer from 1, or the filter has an
                unknown operator.
            DatabaseUnavailable: The index is on a server that does not answer.
        """
        _check(question, k)
        report = on_stage or (lambda _: None)
        count = max(k, self.reranker.depth) if self.reranker else k
        report("embed")
        vector = self.embedder.embed_queries([with_plain_letters(question)])[0]
        report("search")
        found = self._distinct_candidates(vector, question, count, where)
        report("rerank")
        ranked = self.reranker.rerank(question, found) if self.reranker else found
        if self.fusion is not None:
            ranked = exact_tokens_first(question, ranked)
        return self._scored(vector, records_last(question, ranked, k), k)

    def add(self, passages: Sequence[Passage]) -> None:
        """Embed passages and insert them; a passage replaces an indexed passage with the same id.

        Raises:
            TypeError: The index is read-only.
            DatabaseUnavailable: The index is on a server that does not answer.
        """
        vectors = self.embedder.embed_documents([passage.text_with_headings for passage in passages])
        self._collection().upsert(passages, vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages with these ids from the index; unknown ids are ignored.

        Raises:
            TypeError: The index is read-only.
            DatabaseUnavailable: The index is on a server that does not answer.
        """
        self._collection().remove(ids)

    def _collection(self) -> Collection:
        if not isinstance(self.index, Collection):
            raise TypeError(
                f"The index is {type(self.index).__name__}, which is read-only; change it where it is stored."
            )
        return self.index

    def _distinct_candidates(
        self, vector: Vectors, question: str, count: int, where: MetadataFilter | None
    ) -> list[Passage]:
        """Return ``count`` candidates without repetitions; fewer if there are no more."""
        wanted = count
        while True:
            found = self._candidates(vector, question, wanted, where)
            distinct = merge_duplicates(found)
            if len(distinct) >= count or len(found) < wanted or wanted >= MAX_CANDIDATES:
                return distinct[:count]
            wanted *= 2

    def _candidates(self, vector: Vectors, question: str, count: int, where: MetadataFilter | None) -> list[Passage]:
        if self.fusion is None:
            return self._nearest(vector, count, where)
        many = max(count, CANDIDATES)
        if isinstance(self.index, HybridIndex):
            return self.index.hybrid_search(vector, question, count, fusion=self.fusion, candidates=many, where=where)
        dense = self._nearest(vector, many, where)
        return self.fusion(dense, self.index.keyword_search(question, many, where))[:count]

    def _nearest(self, vector: Vectors, count: int, where: MetadataFilter | None) -> list[Passage]:
        """Return the nearest passages; if the index's scores are cosines, set the passages' similarities."""
        found = self.index.vector_search(vector, count, where)
        if not getattr(self.index, "has_cosines", True):
            return found
        return [replace(each, similarity=each.score) for each in found]

    def _scored(self, vector: Vectors, ranked: Sequence[Passage], k: int) -> list[Passage]:
        """Return the first ``k`` passages with their scores; see `search`."""
        known = [*ranked]
        if texts := {each.id: each.text_with_headings for each in ranked[:k] if each.similarity is None}:
            query = normalized(vector[None, :])[0]
            vectors = normalized(self.embedder.embed_documents([*texts.values()]))
            cosines = {name: float(each @ query) for name, each in zip(texts, vectors, strict=True)}
            known = [replace(each, similarity=cosines.get(each.id, each.similarity)) for each in ranked]
        scores = falling([min(max(each.similarity or 0.0, 0.0), 1.0) for each in known])
        return [replace(each, score=score) for each, score in zip(known[:k], scores, strict=False)]


def _check(question: str, k: int) -> None:
    if not isinstance(question, str):
        raise TypeError(f"The question is {type(question).__name__}; a string is needed.")
    if not question.strip():
        raise ValueError("The question is empty; ask something.")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r}; the number of passages is a whole number from 1.")
