"""How many rows each running request gets: what their chances promise against what steps of this engine have taken."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.drafting.paying import ScoredDraft, paying_rows
from antiphon.integrations.vllm.step_times import StepTimes


class BatchBudget:
    """Shares rows among all requests of a step, the likeliest first, as many as promise the most tokens per second.

    A step of r rows emits one token for each request and the sum of the chances of the rows, and takes what steps of r
    rows have taken here, learned from the steps themselves; so where the machine is full, further rows are dear, and
    requests decode plainly.
    """

    def __init__(self) -> None:
        self.times = StepTimes()

    def shares(self, offers: Sequence[ScoredDraft], *, plain: int = 0) -> list[int]:
        """How many rows of each chain are to be verified, in a step with ``plain`` requests more that have no draft."""
        texts = len(offers) + plain
        rows = sum(len(offer.chances) for offer in offers)
        if not rows:
            return [0] * len(offers)
        costs = self.times.seconds(texts + rows)[texts - 1 :]
        return [len(kept) for kept in paying_rows(offers, costs, float(texts))]

    def spent(self, rows: int, seconds: float) -> None:
        """Learn what a step of so many rows has taken."""
        self.times.observe(rows, seconds)
