"""Pearson's chi-square test of whether samples follow a distribution."""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch

Sample = TypeVar("Sample", bound=Hashable)


def p_value(expected: Mapping[Sample, float], observed: Counter[Sample]) -> float:
    """Return the probability that samples of the expected distribution are at least as far from it as these.

    Args:
        expected: Probability of each outcome. Outcomes expected fewer than five times are merged into one cell.
        observed: Count of each outcome. An outcome that is not in ``expected`` is impossible and gives 0.
    """
    if set(observed) - set(expected):
        return 0.0
    draws = observed.total()
    kept = {outcome: p for outcome, p in expected.items() if p * draws >= 5}
    rest = (
        sum(p for outcome, p in expected.items() if outcome not in kept),
        draws - sum(observed[outcome] for outcome in kept),
    )
    cells = [(p, count) for p, count in (*((p, observed[outcome]) for outcome, p in kept.items()), rest) if p > 0]
    statistic = sum((count - p * draws) ** 2 / (p * draws) for p, count in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))  # the upper tail of the chi-square distribution
