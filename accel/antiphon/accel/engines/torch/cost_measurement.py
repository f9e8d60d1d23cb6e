"""Measure how long a model's forward passes take, for several numbers of rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import chain
from antiphon.accel.engines.torch.argmax import argmax
from antiphon.accel.engines.torch.compiled_sequence import CompiledSequence
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.processor import LoadMeter

ROWS = (1, 2, 32, 8, 16, 64, 4)
"""Numbers of rows, the most informative first, because the last ones are skipped if time is short."""

CONTEXTS = (64, 1024)
"""Numbers of cached tokens at which forward passes are measured."""

ROUNDS = 6
MIN_POINTS = 3
SECONDS = 1.5
"""Time limit for starting forward passes; the first `MIN_POINTS` combinations are always run."""

STEP_VERSION = 6
"""Version of the code that runs forward passes. Raise it when their cost changes: stored costs are then ignored."""

PREFILLED = 16
"""Number of context tokens that are computed. The rest are copies, because the cost does not depend on the values."""


Measured = TorchSequence | CompiledSequence


@torch.no_grad()
def measure_step_cost(
    make: Callable[[], TorchSequence],
    *,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = SECONDS,
    steps_of: Callable[[TorchSequence], Measured] = lambda sequence: sequence,
) -> StepCost:
    """Measure forward passes; return the fastest time for each context and number of rows.

    Each combination of context and number of rows is measured in turn until its two fastest times
    agree, at most `ROUNDS` times. The time includes copying the argmax to the host and removing the
    rows (or, with recurrent state, the replay), because a decoding step waits for both. Contexts
    are shortened to fit the model. On a GPU, the first pass of each combination loads or captures
    kernels, and is not timed.

    Args:
        rows: Numbers of rows, the most important first.
        steps_of: Function that takes a sequence with cached tokens, and returns the sequence to
            time: the same sequence, or a new sequence with compiled steps.

    Raises:
        ValueError: ``rows`` or ``contexts`` is empty or not positive.
    """
    for name, values in {"rows": rows, "contexts": contexts}.items():
        if min(values, default=0) < 1:
            raise ValueError(f"{name} is {tuple(values)}; at least one is needed, each at least 1, to measure a step.")
    counts = list(dict.fromkeys((1, *rows)))
    plain = {
        sequence.length: sequence for sequence in (_with_context(make, context, counts) for context in sorted(contexts))
    }
    fits = {
        size: [count for count in counts if _fits(sequence, count, len(counts))] for size, sequence in plain.items()
    }
    caches = {size: steps_of(sequence) for size, sequence in plain.items()}
    points = [(size, count) for size, row in fits.items() for count in row]
    samples: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    meter = LoadMeter()
    deadline = perf_counter() + seconds
    for turn in range(ROUNDS):
        for order, (size, count) in enumerate(points):
            taken = samples[size, count]
            if not _agree(taken) and (perf_counter() < deadline or (turn == 0 and order < MIN_POINTS)):
                if not taken and caches[size].model.device.type != "cpu":
                    deadline += _warm_up(caches[size], count)
                taken.append(_time(caches[size], count))
    found = {size: {count: samples[size, count] for count in sorted(row)} for size, row in fits.items()}
    best = {size: {count: min(taken) for count, taken in row.items() if taken} for size, row in found.items() if row[1]}
    return StepCost(best, is_quiet=meter.is_quiet())


def _agree(taken: Sequence[float]) -> bool:
    """Return whether the two fastest times agree. The first pass of a shape and interrupted passes are slower."""
    fastest = sorted(taken)[:2]
    return len(fastest) == 2 and fastest[1] <= 1.1 * fastest[0]


def _with_context(make: Callable[[], TorchSequence], context: int, counts: Sequence[int]) -> TorchSequence:
    """Return a sequence with ``context`` cached tokens; fewer if the measured rows would not fit."""
    sequence = make()
    size = max(min(context, _max_length(sequence) - max(counts) - _max_growth(len(counts))), 1)
    sequence.prefill(_prompt(sequence.model, min(size, PREFILLED)))
    sequence.keep(())
    if (missing := size - sequence.length) > 0:
        _lengthen(sequence, missing)
    return sequence


def _lengthen(sequence: TorchSequence, tokens: int) -> None:
    """Append copies of the last token's keys and values to every layer; computing new ones would take too long."""
    layers: list[Any] = sequence.cache.layers
    for layer in layers:
        if getattr(layer, "keys", None) is not None:
            layer.update(*(states[..., -1:, :].repeat(1, 1, tokens, 1) for states in (layer.keys, layer.values)))
    sequence.advance(tokens)


def _max_growth(counts: int) -> int:
    """Return the maximum number of tokens by which a context grows during the measurement."""
    return ROUNDS * counts


def _fits(sequence: TorchSequence, count: int, counts: int) -> bool:
    if count == 1:
        return True
    return sequence.level != "plain" and sequence.length + _max_growth(counts) + count <= _max_length(sequence)


def _max_length(sequence: TorchSequence) -> int:
    """Return the model's context length, or the length at which its rotary frequencies switch."""
    traits = sequence.traits
    ends = [traits.max_positions, traits.rope.position if traits.rope else None]
    return min((end for end in ends if end is not None), default=sys.maxsize)


def _prompt(model: PreTrainedModel, size: int) -> list[int]:
    """Return random tokens, because a mixture of experts selects its experts by the token."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return torch.randint(vocabulary, (size,), generator=torch.Generator().manual_seed(0)).tolist()


def _warm_up(sequence: Measured, count: int) -> float:
    """Run a forward pass of ``count`` rows, drop the rows if possible, and return the seconds."""
    started = perf_counter()
    _forward(sequence, _prompt(sequence.model, count))
    if sequence.level in ("tree", "linear"):
        sequence.discard()
    else:
        sequence.keep(())
    return perf_counter() - started


def _time(sequence: Measured, count: int) -> float:
    """Return the seconds of a forward pass of ``count`` rows. The context grows by one token."""
    tokens = _prompt(sequence.model, count)
    started = perf_counter()
    _forward(sequence, tokens)
    sequence.keep(())
    return perf_counter() - started


def _forward(sequence: Measured, tokens: list[int]) -> None:
    """Run a forward pass, and wait until its most likely tokens are on the host."""
    logits = sequence.forward(tokens[:1], chain(tokens[1:]))
    (argmax(logits) if sequence.argmax is None else sequence.argmax).tolist()
