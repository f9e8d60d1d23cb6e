"""Measure the cost of forward passes, once per model and machine; store it in the user's cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import ROOT, chain
from antiphon.accel.engines.openvino.runtime import cpu_name, version
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.accel.engines.torch.cost_store import cost_file, load_credible, save
from antiphon.accel.processor import LoadMeter

if TYPE_CHECKING:
    from antiphon.accel.engines.openvino.engine import OpenVINOEngine

ROWS = (1, 4, 8, 16, 5, 32, 2, 6, 12, 64, 3, 24)
"""Numbers of rows to measure, the most informative first, because the last ones are skipped if time is short. The CPU
plug-in uses other kernels from 5 and from 6 rows on."""

CONTEXTS = (64, 4096)
"""Numbers of cached tokens to measure at, limited by the KV cache and the model's context."""

MIN_RATIO = 2
"""Smallest ratio of two contexts; the difference between closer contexts would be noise."""

DRAFT_ROWS = 4
"""Number of rows at which the cost of a draft is measured at every context.

Attention over several rows first packs the blocks of the context; a plain step reads the blocks in place.
"""

LONG_ROWS = (1, DRAFT_ROWS, 16)
"""Numbers of rows to measure at every context; others are measured at the first context only."""

VERIFIED_ROWS = 3
"""Number of rows whose argmax is timed: verification stops at the first wrong row."""

ROUNDS = 6
SECONDS, PLAIN_STEPS = 6.0, 150
"""The measurement ends after `SECONDS`, or after the time of `PLAIN_STEPS` plain steps if that is
shorter. By then, every number of rows has been measured about twice."""

STEP_VERSION = 13
"""Version of the code that runs forward passes. Raise it when their cost changes: stored costs are then ignored."""


def step_cost(engine: OpenVINOEngine, fingerprint: str, *, remeasure: bool = False) -> StepCost:
    """Return the stored cost of this engine's forward passes, or measure it (about six seconds)."""
    key = {
        "engine": "openvino",
        "model": fingerprint,
        "precision": engine.graph.precision,
        "threads": str(engine.graph.threads),
        "longest": str(min(_longest(engine, max(ROWS)), max(CONTEXTS))),
        "device": cpu_name(),
        "openvino": version(),
        "steps": str(STEP_VERSION),
    }
    path = cost_file(key)
    cost = None if remeasure else load_credible(path, key, lambda context: _plain_step_seconds(engine, context))
    if cost is None:
        # Blocks that were never written share one page of memory, which is read faster.
        engine.preallocate(max(CONTEXTS))
        cost = save(path, key, measure(engine), combines=not remeasure)
    return cost


def measure(
    engine: OpenVINOEngine,
    *,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = SECONDS,
) -> StepCost:
    """Time forward passes; return the fastest time for each context and number of rows.

    Each pass is run twice in succession. The first run adapts the graph to the number of rows; its
    extra time is `StepCost.shape_change`. The time includes finding the argmax of `VERIFIED_ROWS`
    rows. At the first context length, all row counts are measured. At all other lengths, only
    `LONG_ROWS` are measured.

    Args:
        seconds: Maximum time to spend, approximately, see `PLAIN_STEPS`.
    """
    start, *others = sorted({max(min(context, _longest(engine, max(rows))), 1) for context in contexts})
    others = [context for context in others if context >= MIN_RATIO * start]
    points = [(start, count) for count in rows if count == 1 or start <= _longest(engine, count)]
    points += [(context, count) for context in others for count in rows if count in LONG_ROWS]
    samples: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    changes: list[float] = []
    compiled: set[int] = set()  # row counts whose kernels have been compiled
    meter, started, allowed = LoadMeter(), perf_counter(), seconds
    for turn in range(ROUNDS):
        for context, count in points:
            if turn == 0 or perf_counter() - started < allowed:
                first, again = _time_forward(engine, context, count), _time_forward(engine, context, count)
                samples[context, count].append(again)
                if count == 1:
                    allowed = min(allowed, PLAIN_STEPS * again)
                if count in compiled:
                    changes.append(first - again)
                compiled.add(count)
    found: dict[int, dict[int, float]] = {}
    for (context, count), times in sorted(samples.items()):
        if times:
            found.setdefault(context, {})[count] = min(times)
    change, is_quiet = max(median(changes), 0.0) if changes else 0.0, meter.is_quiet()
    return StepCost(found, change, _packing_cost(found), is_quiet=is_quiet)


def _packing_cost(found: Mapping[int, Mapping[int, float]]) -> float:
    """Return the seconds that a draft adds to a plain step for each token of the context; 0 if unknown.

    In a shared forward pass, each sequence with a draft adds this cost once, whatever the size of
    the draft.
    """
    (start, first), (end, last) = min(found.items()), max(found.items())
    if start == end or DRAFT_ROWS not in first or DRAFT_ROWS not in last:
        return 0.0
    return max((last[DRAFT_ROWS] - last[1]) - (first[DRAFT_ROWS] - first[1]), 0.0) / (end - start)


def _plain_step_seconds(engine: OpenVINOEngine, context: int) -> float:
    """Measure one plain step, to check whether a stored cost is still correct."""
    (seconds,) = measure(engine, rows=(1,), contexts=(context,), seconds=0.0).seconds.values()
    return seconds[1]


def _longest(engine: OpenVINOEngine, rows: int) -> int:
    """Return the maximum number of cached tokens that leaves space for ``rows`` rows."""
    return min(engine.capacity, engine.max_positions or engine.capacity) - rows


def _time_forward(engine: OpenVINOEngine, context: int, count: int) -> float:
    """Return the seconds of a forward pass of ``count`` rows after ``context`` tokens.

    The KV cache is uninitialized, which does not affect the time.
    """
    sequence = engine.uninitialized_sequence(context)
    tokens = [1 + index % 200 for index in range(count)]
    started = perf_counter()
    logits = engine.forward([SequenceInput(sequence, tokens[:1], chain(tokens[1:]), needs_best=True)])[0]
    for row in range(ROOT, min(count, VERIFIED_ROWS) - 1):
        logits.argmax(row)
    seconds = perf_counter() - started
    sequence.reset()
    return seconds
