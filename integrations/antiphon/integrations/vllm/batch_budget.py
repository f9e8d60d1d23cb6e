"""Choose the number of draft tokens of each running request from acceptance chances and measured step times."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.drafting.row_selection import ScoredDraft, select_rows
from antiphon.integrations.vllm.step_times import StepTimes


class BatchBudget:
    """Allocates the draft tokens of a step to all requests so that the batch emits the most tokens per second.

    The expected tokens of a step are one per request plus the sum of the acceptance chances of its
    draft tokens. The time of the step is estimated from measured steps with similar numbers of
    rows. The first draft token of a request costs as much as two rows, because verifying any draft
    has a fixed cost. On a saturated machine, further rows cost more than they gain, so requests
    decode without drafts.
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
