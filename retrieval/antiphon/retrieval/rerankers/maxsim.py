"""Rerank by late interaction (MaxSim) with the token vectors of the embedder, without another model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.embedders.protocol import TokenEmbedder, TokenVectors
from antiphon.retrieval.embedders.token_vector_cache import TokenVectorCache
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.rerankers.protocol import falling, sort_by_score
from antiphon.retrieval.vector_index.flat import Vectors

_CACHED = 512  # passages whose token vectors are kept


class MaxSimReranker:
    """Late interaction (MaxSim): every token of the question is matched with the most similar token of the passage.

    Passages are sorted by the search score plus ``weight`` times the IDF-weighted mean similarity
    of the matches. Both terms are standardized over the candidates. The new score of a passage is
    its mean similarity, from 0 to 1. If passages further down have a higher similarity, the new
    score is the highest of these, so that scores never rise in the ranking.

    Args:
        token_counts: For the IDF: for each token id, the number of passages that contain it. None:
            all tokens have equal weights.
        passages: For the IDF: the number of passages in the index.
        weight: The weight of the mean similarity.
    """

    name = "maxsim"

    def __init__(
        self,
        embedder: TokenEmbedder,
        token_counts: NDArray[np.int64] | None = None,
        passages: int = 0,
        *,
        depth: int = 20,
        weight: float = 0.5,
    ) -> None:
        if depth < 1 or weight < 0:
            raise ValueError(f"depth is {depth} and weight {weight}; depth is from 1, weight from 0.")
        self.depth = depth
        self._embedder = embedder
        self._memory = TokenVectorCache(embedder, _CACHED)
        self._weight = weight
        counts = np.zeros(embedder.vocabulary_size) if token_counts is None else token_counts
        self._idf = np.log1p((passages - counts + 0.5) / (counts + 0.5)).astype(np.float32)

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """Return the passages sorted by the combined score. See `Reranker.rerank`."""
        query = self._embedder.token_vectors([question])[0]
        weights = self._idf[query.ids]
        total = float(weights.sum()) or 1.0
        read = self._memory.vectors([passage.text_with_headings for passage in passages])
        near = [float(weights @ self._best(query, vectors)) / total for vectors in read]
        before = _standardized([passage.score or 0.0 for passage in passages])
        keys = (before + self._weight * _standardized(near)).tolist()
        ranked = sort_by_score(passages, keys, np.clip(near, 0.0, 1.0).tolist())
        scores = falling([each.score or 0.0 for each in ranked])
        return [replace(each, score=score) for each, score in zip(ranked, scores, strict=True)]

    @staticmethod
    def _best(query: TokenVectors, vectors: NDArray[np.float16]) -> Vectors:
        if not len(vectors):
            return np.zeros(len(query.ids), np.float32)
        best: Vectors = (query.vectors @ vectors.T.astype(np.float32)).max(axis=1)
        return best


def _standardized(scores: Sequence[float]) -> NDArray[np.float64]:
    """Return each score's distance from the mean in standard deviations; 0 if all are equal."""
    values = np.asarray(scores, np.float64)
    spread = float(values.std()) if len(values) else 0.0
    return (values - values.mean()) / spread if spread else np.zeros_like(values)
