"""The similarity of lines to a question: the cosine of their sentence embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from antiphon.pipelines.prompt import heading_of
from antiphon.pipelines.relevance import LineScorer
from antiphon.retrieval import MiniLMEmbedder, Passage
from antiphon.retrieval.vector_index.flat import Vectors


def similarity_scorer(question: str, searcher: Any = None) -> LineScorer:
    """Return a scorer of lines, each with the heading above it: cosines, -1 to 1.

    The embedder is always all-MiniLM-L6-v2, because the thresholds of `passage_selection` were chosen for it.

    Args:
        question: the question.
        searcher: its embedder is used if it is all-MiniLM-L6-v2; otherwise a shared one is loaded.

    Raises:
        ImportError: the embedder's package is not installed; the message has the command.
    """
    own = getattr(searcher, "embedder", None)
    if isinstance(own, MiniLMEmbedder) and own.fingerprint == MiniLMEmbedder.fingerprint:
        embedder = own
    else:
        embedder = _shared_embedder()

    def similarity(lines: Sequence[tuple[Passage, str]]) -> list[float]:
        if not lines:
            return []
        texts = [f"{heading_of(passage)}\n{line}" for passage, line in lines]
        cosines: Vectors = embedder.embed_documents(texts) @ embedder.embed_queries([question])[0]
        return [float(cosine) for cosine in cosines]

    return similarity


@cache
def _shared_embedder() -> MiniLMEmbedder:
    return MiniLMEmbedder()
