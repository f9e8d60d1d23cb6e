"""From one or several drafts, select the rows with the most expected tokens per second.

A draft is cut to the rows that are worth their cost. `antiphon.accel.drafting.budget` provides calibrated chances and
costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from antiphon.accel.drafting.draft import ROOT, Draft

MARGIN = 1.03
"""Rows must raise the tokens per second by this factor over a plain step, because costs are known to a few percent."""


@dataclass(frozen=True, slots=True)
class ScoredDraft:
    """The draft of one sequence with calibrated chances.

    Attributes:
        chances: Calibrated chance of each candidate; a child's chance is at most its parent's.
    """

    draft: Draft
    chances: list[float]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The candidates, most likely first, and the tokens, rows and seconds of the forward pass without them.

    Attributes:
        tokens: Expected tokens without any candidate.
        rows: Rows without any candidate.
        seconds: Seconds without any candidate, in addition to the cost of the rows.
        gains: Expected tokens that each candidate adds, with its probes.
        sizes: Rows that each candidate adds, with its probes.
        extra_seconds: Seconds that each candidate adds, in addition to the cost of its rows.
    """

    tokens: float
    rows: int
    seconds: float
    gains: list[float]
    sizes: list[int]
    extra_seconds: list[float]

    def rates(self, costs: Sequence[float]) -> list[float]:
        """Return the expected tokens per second with 0, 1, 2, ... candidates."""
        tokens, rows = accumulate(self.gains, initial=self.tokens), accumulate(self.sizes, initial=self.rows)
        extra = accumulate(self.extra_seconds, initial=self.seconds)
        return [token / (costs[count] + more) for token, count, more in zip(tokens, rows, extra, strict=True)]


def select_rows(
    scored: Sequence[ScoredDraft], costs: Sequence[float], tokens: float, first_row_costs: Sequence[float] = ()
) -> list[list[int]]:
    """Select the rows to verify, so that the expected tokens per second are highest.

    The candidates of all drafts are sorted by chance, most likely first. The first k of them give (tokens + sum of
    their chances) / costs[k] tokens per second. Every k is tried, because costs rise in jumps. The
    probes below a draft's root and below its selected candidates are added, all together, if they
    increase the tokens per second.

    Args:
        scored: The draft of each sequence that shares the forward pass.
        costs: Seconds of the forward pass with k = 0, 1, ... draft rows in all sequences together.
        tokens: Expected tokens of the forward pass without any of these rows.
        first_row_costs: Seconds that the first row of each draft adds to its forward pass; 0 by default.

    Returns:
        For each draft, the selected rows, ascending; no rows if they do not raise the tokens per
        second by the factor `MARGIN`.
    """
    first_row_costs = first_row_costs or (0.0,) * len(scored)
    chances = [chance for each in scored for chance in each.chances]
    order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)  # parents stay first
    extra_seconds = _extra_seconds(scored, order, first_row_costs)
    plan = _Plan(tokens, 0, 0.0, [chances[row] for row in order], [1] * len(order), extra_seconds)
    rates = plan.rates(costs)
    best, least = max(rates), MARGIN * rates[0]
    kept = rates.index(best) if best > least else 0
    if not any(each.draft.num_probes for each in scored):
        return _selected(scored, order[:kept], set())
    best, probing = rates[kept], set[int]()
    for index, each in enumerate(scored):
        if each.draft.num_probes:
            tried = _with_probes(plan, each, _places(scored, index, order), first_row_costs[index])
            rates = tried.rates(costs)
            if max(rates) > max(best, least):
                plan, best = tried, max(rates)
                kept = rates.index(best)
                probing.add(index)
    return _selected(scored, order[:kept], probing)


def _extra_seconds(
    scored: Sequence[ScoredDraft], order: Sequence[int], first_row_costs: Sequence[float]
) -> list[float]:
    """Return the extra seconds of each candidate: the first-row cost for the first candidate of a draft, else 0."""
    extra = [0.0] * len(order)
    if any(first_row_costs):
        owners = [index for index, each in enumerate(scored) for _ in each.chances]
        first = {owners[row]: place for place, row in reversed(list(enumerate(order)))}
        for index, place in first.items():
            extra[place] = first_row_costs[index]
    return extra


def _with_probes(plan: _Plan, scored: ScoredDraft, places: dict[int, int], first_row_cost: float) -> _Plan:
    """Return the plan with one draft's probes; ``places`` maps the draft's rows to plan indices."""
    worth = scored.draft.chances
    gains, sizes, tokens, rows = list(plan.gains), list(plan.sizes), plan.tokens, plan.rows
    extra_seconds, seconds = list(plan.extra_seconds), plan.seconds
    for above, probes in scored.draft.probes_below.items():
        if above == ROOT:
            tokens += sum(worth[probe] for probe in probes)
            rows += len(probes)
            seconds += first_row_cost
            for place in places.values():
                extra_seconds[place] = 0.0
        else:
            gains[places[above]] += sum(worth[probe] for probe in probes)
            sizes[places[above]] += len(probes)
    return _Plan(tokens, rows, seconds, gains, sizes, extra_seconds)


def _places(scored: Sequence[ScoredDraft], index: int, order: Sequence[int]) -> dict[int, int]:
    """Return, for each candidate of one draft, its index in ``order``."""
    first = sum(len(each.chances) for each in scored[:index])
    rows = range(first, first + len(scored[index].chances))
    return {row - first: place for place, row in enumerate(order) if row in rows}


def _selected(scored: Sequence[ScoredDraft], order: Sequence[int], probing: set[int]) -> list[list[int]]:
    """Return the rows of each draft: its candidates in ``order``, and their probes if the draft is in ``probing``."""
    ends = list(accumulate(len(each.chances) for each in scored))
    selected: list[list[int]] = []
    for index, (each, end) in enumerate(zip(scored, ends, strict=True)):
        first = end - len(each.chances)
        rows = sorted(row - first for row in order if first <= row < end) if len(scored) > 1 else sorted(order)
        if index in probing:
            probes = each.draft.probes_below
            rows += sorted(chain.from_iterable(probes.get(row, ()) for row in (ROOT, *rows)))
        selected.append(rows)
    return selected
