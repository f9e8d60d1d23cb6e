"""How well a text fits a question: the cosine of their sentence embeddings. Knows nothing of language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from antiphon.pipelines.prompt import heading_of
from antiphon.retrieval import MiniLMEmbedder, Passage
from antiphon.retrieval.vectors import Vectors

Relevance = Callable[[Sequence[tuple[Passage, str]]], list[float]]
"""How well sayings, each with the passage that it is of, fit a question: from -1 to 1."""


def relevance_to(question: str, searcher: Any = None) -> Relevance:
    """Weighs what passages say against a question, each saying under the heading that it stands under.

    The embedding is all-MiniLM-L6-v2's, whatever the passages were found by: what is enough relevance for an answer
    is known of that one. It is the ``searcher``'s own where that has it, else one that all share.

    Raises:
        ImportError: its package is not installed; says the command.
    """
    embedder = getattr(searcher, "embedder", None)
    used = embedder if isinstance(embedder, MiniLMEmbedder) else _embedder()

    def relevance(said: Sequence[tuple[Passage, str]]) -> list[float]:
        if not said:
            return []
        texts = [f"{heading_of(passage)}\n{saying}" for passage, saying in said]
        fits: Vectors = used.embed_documents(texts) @ used.embed_queries([question])[0]
        return [float(fit) for fit in fits]

    return relevance


@cache
def _embedder() -> MiniLMEmbedder:
    return MiniLMEmbedder()
