"""What a forward of the graph costs by its rows: measured on real forwards once, and kept. Knows no drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from antiphon.accel.drafting.draft import chain
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.engines.openvino.runtime import core, version
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.accel.engines.torch.cost_store import file_of, kept, save

if TYPE_CHECKING:
    from antiphon.accel.engines.openvino.engine import OpenVINOEngine

ROWS = (1, 4, 8, 16, 5, 32, 2, 6, 12, 64, 3, 24)
"""In the order of what each tells: kernels change at 5 and 6 rows, and where time is short, the last are left out."""

CONTEXTS = (64, 1024)
DRAFTING = 4
"""Rows whose attention packs the blocks of a context, beside plain steps, whose attention reads them as they are."""

ROUNDS = 6
SECONDS = 2.0
STEPS = 4
"""Raised whenever steps come to be run otherwise: costs that were kept from before are measured anew."""


def step_cost(engine: OpenVINOEngine, fingerprint: str, *, remeasure: bool = False) -> StepCost:
    """What a forward of this engine costs: as it was measured here before, or measured now (some two seconds).

    ``anew`` measures in any case.
    """
    key = {
        "engine": "openvino",
        "model": fingerprint,
        "precision": engine.graph.precision,
        "threads": str(engine.graph.threads),
        "device": str(core().get_property("CPU", "FULL_DEVICE_NAME")),
        "openvino": version(),
        "steps": str(STEPS),
    }
    path = file_of(key)
    cost = None if remeasure else kept(path, key, lambda context: _plain(engine, context))
    if cost is None:
        cost = measure(engine)
        save(path, key, cost)
    return cost


def measure(
    engine: OpenVINOEngine,
    *,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = SECONDS,
) -> StepCost:
    """Time real forwards over a text of each length, for about so many ``seconds``; the fastest of each kind counts.

    Each is run twice in a row: the first adapts the graph to its number of rows, and what it takes longer than the
    second is what a `StepCost.shape_change` costs. A forward counts until the best token of every row is known. Contexts that
    do not fit the memory or the model's positions beside the rows are left out; of the first one every number of rows
    is run, of the others a plain step and one of `DRAFTING` rows.
    """
    points = [(context, count) for context in sorted(contexts) for count in rows if _fits(engine, context, count)]
    samples: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    changes: list[float] = []
    made: set[int] = set()  # the row counts whose kernels were made before
    deadline = perf_counter() + seconds
    for turn in range(ROUNDS):
        for context, count in points:
            is_needed = turn == 0 and (context == points[0][0] or count in (1, DRAFTING))
            if is_needed or perf_counter() < deadline:
                first, again = _time(engine, context, count), _time(engine, context, count)
                samples[context, count].append(again)
                if count in made:
                    changes.append(first - again)
                made.add(count)
    found: dict[int, dict[int, float]] = {}
    for (context, count), taken in sorted(samples.items()):
        if taken:
            found.setdefault(context, {})[count] = min(taken)
    return StepCost(found, max(median(changes), 0.0) if changes else 0.0, _packing(found))


def _packing(found: Mapping[int, Mapping[int, float]]) -> float:
    """Seconds for each token of a context by which drafts cost more after a long one than after a short one.

    It is a text's own, and hardly depends on how many rows it has; 0 where only one context was measured.
    """
    (start, first), (end, last) = min(found.items()), max(found.items())
    if start == end or DRAFTING not in first or DRAFTING not in last:
        return 0.0
    return max((last[DRAFTING] - last[1]) - (first[DRAFTING] - first[1]), 0.0) / (end - start)


def _plain(engine: OpenVINOEngine, context: int) -> float:
    """Seconds of a plain step now."""
    return measure(engine, rows=(1,), contexts=(context,), seconds=0.0).seconds[context][1]


def _fits(engine: OpenVINOEngine, context: int, count: int) -> bool:
    end = engine.positions
    return context + count <= engine.capacity and (end is None or context + count <= end)


def _time(engine: OpenVINOEngine, context: int, count: int) -> float:
    """Seconds of one forward of so many rows after so many tokens, which nobody has read: their states are as good."""
    sequence = engine.imagined(context)
    tokens = [1 + index % 200 for index in range(count)]
    started = perf_counter()
    logits = engine.forward([SequenceInput(sequence, tokens[:1], chain(tokens[1:]))])[0]
    for row in range(-1, count - 1):
        logits.argmax(row)
    taken = perf_counter() - started
    sequence.reset()
    return taken
