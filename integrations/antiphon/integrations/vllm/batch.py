"""The requests of a step as drafters need them, settings that select this proposer, and the rows of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from antiphon.accel.drafting.row_selection import ScoredDraft, select_rows
from antiphon.integrations.vllm.step_times import StepTimes

METHOD = "custom_class"
"""Value of ``method`` in vLLM's ``--speculative-config`` that selects a drafter of this package."""

HEAD_TOKENS = "ANTIPHON_HEAD_TOKENS"
"""Environment variable with the number of tokens that the model's own head drafts. If it is set,
references are used in addition to the head."""

HEAD_METHODS = frozenset({"eagle", "eagle3", "mtp"})
"""Values of ``method`` that draft with a head of the model."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A request that emitted tokens in the step that was just computed.

    Attributes:
        request_id: vLLM's id of the request.
        owner: State of the request in the model runner. If it differs, the same id belongs to
            another request.
        extra_args: Arguments of the request, including its admitted sources; None if the request has no arguments.
        num_prompt_tokens: Number of tokens of the prompt.
        num_tokens: Number of tokens of prompt and answer.
        read: Function that returns the token ids from a start position up to an end position.
        max_draft_tokens: Maximum number of tokens of the request's next draft; None: only the
            drafter's limit applies.
    """

    request_id: str
    owner: Any
    extra_args: Mapping[str, Any] | None
    num_prompt_tokens: int
    num_tokens: int
    read: Callable[[int, int], list[int]]
    max_draft_tokens: int | None = None


def is_proposer(drafter: object) -> bool:
    """Return whether vLLM's drafter, an object or a class, is a `Proposer`."""
    return hasattr(drafter, "prepare_step")


def _names_proposer(speculative_config: Any) -> bool:
    if getattr(speculative_config, "method", None) != METHOD:
        return False
    try:
        return is_proposer(resolve_name(speculative_config.model))
    except (ImportError, AttributeError, ValueError):
        return False


def head_tokens() -> int:
    """Return the value of `HEAD_TOKENS`, or 0 if it is not set.

    Raises:
        ValueError: The value is not a number.
    """
    given = os.environ.get(HEAD_TOKENS, "0")
    if not given.isdecimal():
        raise ValueError(f"{HEAD_TOKENS} is {given!r}; give the number of tokens that the head drafts in a step.")
    return int(given)


def combines_head(speculative_config: Any) -> bool:
    """Return whether this server drafts both with the model's own head and from references."""
    return getattr(speculative_config, "method", None) in HEAD_METHODS and head_tokens() > 0


def reads_references(speculative_config: Any) -> bool:
    """Return whether a server with this speculative configuration uses references in requests."""
    return _names_proposer(speculative_config) or combines_head(speculative_config)


class BatchBudget:
    """Allocates the draft tokens of a step to all requests so that the batch emits the most tokens per second.

    The expected tokens of a step are one per request plus the sum of the acceptance chances of its
    draft tokens. The time of the step is estimated from measured steps with as many rows. The first
    draft token of a request costs as much as two rows, because verifying any draft has a fixed
    cost. On a saturated machine, further rows cost more than they gain, so requests decode without
    drafts.
    """

    def __init__(self) -> None:
        self.step_times = StepTimes()

    def allocate(self, drafts: Sequence[ScoredDraft], *, num_without_draft: int = 0) -> list[int]:
        """Return how many tokens of each draft to verify.

        Args:
            drafts: Chains with the acceptance chance of every token.
        """
        requests = len(drafts) + num_without_draft
        rows = sum(len(draft.chances) for draft in drafts)
        if not rows:
            return [0] * len(drafts)
        costs = self.step_times.seconds(requests + rows)[requests - 1 :]
        first_row_costs = [self.step_times.row_seconds()] * len(drafts)
        return [len(kept) for kept in select_rows(drafts, costs, float(requests), first_row_costs)]

    def observe(self, rows: int, seconds: float) -> None:
        """Update the step times with a measured step."""
        self.step_times.observe(rows, seconds)
