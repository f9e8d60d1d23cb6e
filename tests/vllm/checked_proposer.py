"""A proposer that checks its own drafts inside a real vLLM server.

It writes each violation as a line to the file that the environment variable ANTIPHON_VIOLATIONS names.
"""

import os
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from antiphon.integrations.vllm.admission import read_sources
from antiphon.integrations.vllm.batch import BatchRow
from antiphon.integrations.vllm.proposer import Proposer
from antiphon.integrations.vllm.request_drafter import OVERLAP
from antiphon.integrations.vllm.step_times import StepTimes


class ConstantStepTimes(StepTimes):
    """Predicts the initial step times whatever it observes, so that a busy machine does not change the drafts."""

    def observe(self, rows: int, seconds: float) -> None:
        """Learn nothing."""


class CheckedProposer(Proposer):
    """A `Proposer` that records failures, and drafts that hold a token pair from outside the request's own texts."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.step_times = ConstantStepTimes()

    def draft(self, rows: Sequence[BatchRow], scheduled: Mapping[str, int], running: Container[str]) -> list[list[int]]:
        """Return the drafts of `Proposer` after checking each of them."""
        drafts = super().draft(rows, scheduled, running)
        for row, draft in zip(rows, drafts, strict=True):
            tokens = row.read(0, row.num_tokens)
            if draft and not set(pairwise([tokens[-1], *draft])) <= own_pairs(row, tokens):
                self._record(f"{row.request_id}: {draft}")
        return drafts

    def _count_failure(self, error: Exception) -> None:
        super()._count_failure(error)
        self._record(f"{type(error).__name__}: {error}")

    def _record(self, line: str) -> None:
        with Path(os.environ["ANTIPHON_VIOLATIONS"]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def own_pairs(row: BatchRow, tokens: list[int]) -> set[tuple[int, int]]:
    """Return the pairs of neighbouring tokens in all texts of a request."""
    sources = read_sources(row.extra_args)
    prediction = [*tokens[: row.num_prompt_tokens][-OVERLAP:], *sources.prediction]
    return {pair for text in (tokens, prediction, *sources.references) for pair in pairwise(text)}
