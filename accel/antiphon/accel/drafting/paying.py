"""Which rows of one or several drafts promise the most tokens per second. Knows neither budgets nor who drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from antiphon.accel.drafting.draft import ROOT, Draft

MARGIN = 1.03
"""Rows have to promise so many times the tokens per second of a step without them: costs are known to a few percent."""


@dataclass(frozen=True, slots=True)
class ScoredDraft:
    """One text's draft, with the calibrated chance of each of its candidates; a child's is never above its parent's."""

    draft: Draft
    chances: list[float]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is taken before any candidate, and what each candidate brings, the likeliest first.

    ``price`` and ``prices`` are the seconds that they cost beside their rows.
    """

    tokens: float
    rows: int
    price: float
    gains: list[float]
    sizes: list[int]
    prices: list[float]

    def rates(self, costs: Sequence[float]) -> list[float]:
        """Tokens per second with no candidate, with the first, with the first two, ..."""
        tokens, rows = accumulate(self.gains, initial=self.tokens), accumulate(self.sizes, initial=self.rows)
        prices = accumulate(self.prices, initial=self.price)
        return [token / (costs[count] + price) for token, count, price in zip(tokens, rows, prices, strict=True)]


def paying_rows(
    offers: Sequence[ScoredDraft], costs: Sequence[float], tokens: float, prices: Sequence[float] = ()
) -> list[list[int]]:
    """For each offer the rows to verify, ascending; none at all where they do not pay by the `MARGIN`.

    ``costs[k]`` is what the forward costs with ``k`` rows of all offers together, ``tokens`` what it emits with none.
    With the candidates of all offers by their chance, the likeliest first, the first ``k`` are taken for the best
    ``k``: every one is tried, for costs come in steps. Where a draft promises
    more tokens per second with its probes, those of its root and of each of its candidates taken are added; else none.

    With ``prices`` the first row of each offer costs so much beside.
    """
    prices = prices or (0.0,) * len(offers)
    chances = [chance for offer in offers for chance in offer.chances]
    order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)  # a parent is likelier, or before
    plan = _Plan(tokens, 0, 0.0, [chances[row] for row in order], [1] * len(order), _opening(offers, order, prices))
    rates = plan.rates(costs)
    best, least = max(rates), MARGIN * rates[0]
    kept = rates.index(best) if best > least else 0
    if not any(offer.draft.probes for offer in offers):
        return _taken(offers, order[:kept], set())
    best, probing = rates[kept], set[int]()
    for index, offer in enumerate(offers):
        if offer.draft.probes:
            tried = _with_probes(plan, offer, _places(offers, index, order), prices[index])
            rates = tried.rates(costs)
            if max(rates) > max(best, least):
                plan, best = tried, max(rates)
                kept = rates.index(best)
                probing.add(index)
    return _taken(offers, order[:kept], probing)


def _opening(offers: Sequence[ScoredDraft], order: Sequence[int], prices: Sequence[float]) -> list[float]:
    """What each candidate costs beside its row: the price of its offer, where it is the first one of it."""
    opening = [0.0] * len(order)
    if any(prices):
        owners = [index for index, offer in enumerate(offers) for _ in offer.chances]
        first = {owners[row]: place for place, row in reversed(list(enumerate(order)))}
        for index, place in first.items():
            opening[place] = prices[index]
    return opening


def _with_probes(plan: _Plan, offer: ScoredDraft, places: dict[int, int], price: float) -> _Plan:
    """The same plan, with the probes of one offer; ``places`` say where in the plan each of its candidates is."""
    worth = offer.draft.chances
    gains, sizes, tokens, rows = list(plan.gains), list(plan.sizes), plan.tokens, plan.rows
    prices, paid = list(plan.prices), plan.price
    for above, probes in offer.draft.probes_below.items():
        if above == ROOT:
            tokens += sum(worth[probe] for probe in probes)
            rows += len(probes)
            paid += price
            for place in places.values():
                prices[place] = 0.0
        else:
            gains[places[above]] += sum(worth[probe] for probe in probes)
            sizes[places[above]] += len(probes)
    return _Plan(tokens, rows, paid, gains, sizes, prices)


def _places(offers: Sequence[ScoredDraft], index: int, order: Sequence[int]) -> dict[int, int]:
    """Where in the order the candidates of one offer are."""
    first = sum(len(offer.chances) for offer in offers[:index])
    rows = range(first, first + len(offers[index].chances))
    return {row - first: place for place, row in enumerate(order) if row in rows}


def _taken(offers: Sequence[ScoredDraft], order: Sequence[int], probing: set[int]) -> list[list[int]]:
    """The rows of each offer: its candidates among those ordered, and the probes below them where it is probing."""
    ends = list(accumulate(len(offer.chances) for offer in offers))
    taken: list[list[int]] = []
    for index, (offer, end) in enumerate(zip(offers, ends, strict=True)):
        first = end - len(offer.chances)
        rows = sorted(row - first for row in order if first <= row < end) if len(offers) > 1 else sorted(order)
        if index in probing:
            probes = offer.draft.probes_below
            rows += sorted(chain.from_iterable(probes.get(row, ()) for row in (ROOT, *rows)))
        taken.append(rows)
    return taken
