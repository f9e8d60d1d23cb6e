"""How similar a text is to a question: the cosine of their sentence embeddings. Knows nothing of language models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from antiphon.pipelines.prompt import heading_of
from antiphon.pipelines.relevance import Measure
from antiphon.retrieval import MiniLMEmbedder, Passage
from antiphon.retrieval.vectors import Vectors


def similarity_to(question: str, searcher: Any = None) -> Measure:
    """How similar lines are to a question, each under the heading that it stands under: from -1 to 1.

    The embedding is all-MiniLM-L6-v2's, whatever the passages were found by: what is enough for an answer is known of
    that one. It is the ``searcher``'s own where that has it, else one that all share.

    Raises:
        ImportError: its package is not installed; says the command.
    """
    embedder = getattr(searcher, "embedder", None)
    if isinstance(embedder, MiniLMEmbedder) and embedder.fingerprint == MiniLMEmbedder.fingerprint:
        used = embedder
    else:
        used = _embedder()

    def similarity(said: Sequence[tuple[Passage, str]]) -> list[float]:
        if not said:
            return []
        texts = [f"{heading_of(passage)}\n{line}" for passage, line in said]
        fits: Vectors = used.embed_documents(texts) @ used.embed_queries([question])[0]
        return [float(fit) for fit in fits]

    return similarity


@cache
def _embedder() -> MiniLMEmbedder:
    return MiniLMEmbedder()
