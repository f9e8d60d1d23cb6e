"""Late interaction: passages reranked by the embedder's own token vectors. Needs no model beside the embedder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.embed import TokenEmbedder, TokenVectors
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.rerank import ranked
from antiphon.retrieval.token_memory import TokenMemory
from antiphon.retrieval.vectors import Vectors


class MaxSim:
    """Late interaction: each token of the question looks for its best match in the passage; rare tokens weigh more.

    The score is the one that a passage comes with plus ``weight`` times the IDF-weighted mean of those matches, each
    in standard deviations from its mean over the candidates. It needs no further model, and reads a passage once:
    token vectors of the last ``remembered`` passages are kept.
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
        remembered: int = 512,
    ) -> None:
        if depth < 1 or weight < 0:
            raise ValueError(f"depth is {depth} and weight {weight}; depth is from 1, weight from 0.")
        self.depth = depth
        self._embedder = embedder
        self._memory = TokenMemory(embedder, remembered)
        self._weight = weight
        counts = np.zeros(embedder.vocabulary) if token_counts is None else token_counts
        self._idf = np.log1p((passages - counts + 0.5) / (counts + 0.5)).astype(np.float32)

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """The passages in the order of their mixed score."""
        query = self._embedder.token_vectors([question])[0]
        weights = self._idf[query.ids]
        total = float(weights.sum()) or 1.0
        read = self._memory.vectors([passage.text_with_headings for passage in passages])
        near = [float(weights @ self._best(query, vectors)) / total for vectors in read]
        before = _standardized([passage.score or 0.0 for passage in passages])
        scores = (before + self._weight * _standardized(near)).tolist()
        return ranked(passages, scores, scores)

    @staticmethod
    def _best(query: TokenVectors, vectors: NDArray[np.float16]) -> Vectors:
        if not len(vectors):
            return np.zeros(len(query.ids), np.float32)
        best: Vectors = (query.vectors @ vectors.T.astype(np.float32)).max(axis=1)
        return best


def _standardized(scores: Sequence[float]) -> NDArray[np.float64]:
    """How many standard deviations each is from the mean; zeros where they do not differ."""
    values = np.asarray(scores, np.float64)
    spread = float(values.std()) if len(values) else 0.0
    return (values - values.mean()) / spread if spread else np.zeros_like(values)
