"""Passages in better order: what a reranker is. Knows none of them, and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from antiphon.retrieval.passage import Passage


class Reranker(Protocol):
    """Puts the candidates of a search into a better order; ``depth`` is how many candidates it reads."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def depth(self) -> int:
        """How many candidates are worth reading for one question."""

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """The same passages with new scores, best first; equal scores keep their order."""


def ranked(passages: Sequence[Passage], keys: Sequence[float], scores: Sequence[float]) -> list[Passage]:
    """The passages by falling key, each with its score; equal keys keep their order."""
    order = sorted(range(len(passages)), key=lambda place: -keys[place])
    return [replace(passages[place], score=float(scores[place])) for place in order]
