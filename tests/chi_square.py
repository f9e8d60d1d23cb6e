"""Whether draws fit a law: one test of goodness of fit, for every engine that samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch

Drawn = TypeVar("Drawn", bound=Hashable)


def p_value(law: Mapping[Drawn, float], seen: Counter[Drawn]) -> float:
    """Pearson's chi-square: how often an engine that is right is as far from the law as this, or further.

    What the law expects fewer than five times is one cell; what it does not know at all cannot be: that gives 0.
    """
    if set(seen) - set(law):
        return 0.0
    draws = seen.total()
    kept = {drawn: p for drawn, p in law.items() if p * draws >= 5}
    rest = sum(p for drawn, p in law.items() if drawn not in kept), draws - sum(seen[drawn] for drawn in kept)
    cells = [(p, count) for p, count in (*((p, seen[drawn]) for drawn, p in kept.items()), rest) if p > 0]
    statistic = sum((count - p * draws) ** 2 / (p * draws) for p, count in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))  # what chi-square leaves above the statistic
