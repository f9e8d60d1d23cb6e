"""Passages to references: the one place where evidence meets tokens."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.retrieval import Passage


def passage_references(passages: Sequence[Passage]) -> list[str]:
    """The texts that the answer may quote, best passage first, each text once.

    The order is what a drafter goes by where two references match equally well.
    """
    return list(dict.fromkeys(passage.text for passage in passages))
