"""A proposer that checks its own drafts inside a real vLLM server.

It writes each violation as a line to the file that the environment variable ANTIPHON_VIOLATIONS names.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from antiphon.integrations.vllm.admission import read_sources
from antiphon.integrations.vllm.proposer import Proposer
from antiphon.integrations.vllm.request_drafter import OVERLAP
from antiphon.integrations.vllm.step_times import StepTimes


class ConstantStepTimes(StepTimes):
    """Predicts the initial step times whatever it observes, so that a busy machine does not change the drafts."""

    def seconds(self, rows: int) -> list[float]:
        """Return the prediction of a model that has seen no step."""
        return StepTimes().seconds(rows)


class CheckedProposer(Proposer):
    """A `Proposer` that records failures, and drafts that hold a token pair from outside the request's own texts."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.budget.step_times = ConstantStepTimes()

    def propose(self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, **more: Any) -> Any:
        """Return the drafts of `Proposer` after checking every row."""
        drafts = super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, **more)
        for row, draft in enumerate(drafts):
            if draft and self._runner is not None:
                request_id = self._runner.input_batch.req_ids[row]
                tokens = token_ids_cpu[row, : int(num_tokens_no_spec[row])].tolist()
                prompt = tokens[: int(self._runner.input_batch.num_prompt_tokens[row])]
                if not set(pairwise([tokens[-1], *draft])) <= self._own_pairs(request_id, tokens, prompt):
                    self._record(f"{request_id}: {draft}")
        if self.failures:
            self._record(f"{self.failures} failures")
        return drafts

    def _own_pairs(self, request_id: str, tokens: list[int], prompt: list[int]) -> set[tuple[int, int]]:
        assert self._runner is not None
        sources = read_sources(self._runner.requests[request_id].sampling_params.extra_args)
        prediction = [*prompt[-OVERLAP:], *sources.prediction]
        return {pair for text in (tokens, prediction, *sources.references) for pair in pairwise(text)}

    def _record(self, line: str) -> None:
        with Path(os.environ["ANTIPHON_VIOLATIONS"]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
