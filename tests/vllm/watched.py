"""A proposer that is looked over the shoulder: in every draft, each token has to follow the one before it in own texts.

Runs inside vLLM; what it finds wrong is a line in the file that the environment's ANTIPHON_WATCH names.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from antiphon.integrations.vllm.admission import sources_of
from antiphon.integrations.vllm.proposer import Proposer
from antiphon.integrations.vllm.request_drafts import OPENING
from antiphon.integrations.vllm.step_times import StepTimes


class Unhurried(StepTimes):
    """Learns what steps take, and goes by what it was made with: a busy machine must not change what is drafted."""

    def seconds(self, rows: int) -> list[float]:
        """As if no step had been seen."""
        return StepTimes().seconds(rows)


class Watched(Proposer):
    """Drafts as `Proposer`, and notes drafts that come from anywhere but the request's own texts, and failures."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.budget.times = Unhurried()

    def propose(self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, **more: Any) -> Any:
        """The drafts of `Proposer`, looked at row by row."""
        drafts = super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, **more)
        for row, draft in enumerate(drafts):
            if draft and self._runner is not None:
                name = self._runner.input_batch.req_ids[row]
                text = token_ids_cpu[row, : int(num_tokens_no_spec[row])].tolist()
                prompt = text[: int(self._runner.input_batch.num_prompt_tokens[row])]
                if not set(pairwise([text[-1], *draft])) <= self._own(name, text, prompt):
                    self._note(f"{name}: {draft}")
        if self.failures:
            self._note(f"{self.failures} failures")
        return drafts

    def _own(self, name: str, text: list[int], prompt: list[int]) -> set[tuple[int, int]]:
        assert self._runner is not None
        sources = sources_of(self._runner.requests[name].sampling_params.extra_args)
        predicted = [*prompt[-OPENING:], *sources.prediction]
        return {pair for own in (text, predicted, *sources.references) for pair in pairwise(own)}

    def _note(self, line: str) -> None:
        with Path(os.environ["ANTIPHON_WATCH"]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
