"""The numbers that decide which lines of the passages are quoted as an answer, and when there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """Weights and thresholds of `passage_selection`; scores are log-odds in nats.

    ``min_score`` was chosen by ``benchmarks/answer_selection.py``, which reports the figures of each corpus with the
    value that the other corpora choose.

    Attributes:
        min_score: a lower score of the best line is a refusal.
        known_weight: added to the score of the best line if all words of the question are in the passages; if only a
            share of them is, that share of it.
        max_gap: the maximum gap between the relevance of a further quoted line and that of the first one.
        max_further: the maximum number of further lines, not counting the blocks that they introduce.
        record_penalty: lines of changelogs, issue lists and tests are so much less relevant than those of a manual.
        outside_penalty: lines of documents other than the one that the question names are so much less relevant.
        same_document: lines of a document that the latest answer quotes are so much more relevant to a follow-up.
        same_section: lines of a section that it quotes, in addition.
        follow_up_penalty: all lines are so much less relevant to a follow-up then, or it would hardly ever be refused.
    """

    min_score: float = -0.1
    known_weight: float = 1.0
    max_gap: float = 2.0
    max_further: int = 2
    record_penalty: float = 1.0
    outside_penalty: float = 1.5
    same_document: float = 2.0
    same_section: float = 1.0
    follow_up_penalty: float = 0.75


RULES = SelectionRules()
"""The rules of all answers."""
