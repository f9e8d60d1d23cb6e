"""Measures what a model's forwards cost by how many rows they verify. Knows nothing of who drafts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import chain
from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.engines.torch.best import argmax
from antiphon.accel.engines.torch.sequence import TorchSequence

ROWS = (1, 2, 32, 8, 16, 64, 4)
"""In the order of what each tells: where time is short, the last ones are left out."""

CONTEXTS = (64, 1024)
ROUNDS = 6
LEAST = 3
SECONDS = 1.5
"""When measuring ends; the forward under way is ended, and the first `LEAST` are always run."""

STEPS = 3
"""Raised whenever steps come to be run otherwise: costs that were kept from before are measured anew."""

READ = 16
"""How many tokens are really read: what is in a cache does not change what a forward over it costs."""


@torch.no_grad()
def measure(
    make: Callable[[], TorchSequence],
    *,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = SECONDS,
) -> StepCost:
    """Time real forwards of sequences from ``make``, for about so many ``seconds``, and take the fastest of each kind.

    Contexts and numbers of rows take turns until the two fastest forwards of each agree, up to `ROUNDS` times; where
    time is short, the last of them are left out. A forward counts until its argmax is on the host and its rows are
    taken back, which is what a decoding step waits for: where recurrent state has to be replayed, the second forward
    is counted too. Contexts are shortened where the model's own ends before.

    Raises:
        ValueError: there are no ``rows`` or ``contexts``, or one of them is not positive.
    """
    for name, values in {"rows": rows, "contexts": contexts}.items():
        if min(values, default=0) < 1:
            raise ValueError(f"{name} is {tuple(values)}; at least one is needed, each at least 1, to measure a step.")
    counts = list(dict.fromkeys((1, *rows)))
    caches = {sequence.length: sequence for sequence in (_after(make, context, counts) for context in sorted(contexts))}
    fits = {
        size: [count for count in counts if _fits(sequence, count, len(counts))] for size, sequence in caches.items()
    }
    points = [(size, count) for size, row in fits.items() for count in row]
    samples: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    deadline = perf_counter() + seconds
    for turn in range(ROUNDS):
        for order, (size, count) in enumerate(points):
            taken = samples[size, count]
            if not _agree(taken) and (perf_counter() < deadline or (turn == 0 and order < LEAST)):
                taken.append(_time(caches[size], count))
    found = {size: {count: samples[size, count] for count in sorted(row)} for size, row in fits.items()}
    return StepCost(
        {size: {count: min(taken) for count, taken in row.items() if taken} for size, row in found.items() if row[1]}
    )


def _agree(taken: Sequence[float]) -> bool:
    """Whether the two fastest are alike: the first forward of a shape is slower than all that follow, and so is one
    in whose midst something else ran.
    """
    fastest = sorted(taken)[:2]
    return len(fastest) == 2 and fastest[1] <= 1.1 * fastest[0]


def _after(make: Callable[[], TorchSequence], context: int, counts: Sequence[int]) -> TorchSequence:
    """The model with ``context`` tokens in its cache, or as many as leave room for all that will be fed."""
    sequence = make()
    size = max(min(context, _end(sequence) - max(counts) - _forwards(len(counts))), 1)
    sequence.prefill(_prompt(sequence.model, min(size, READ)))
    sequence.keep(())
    if (missing := size - sequence.length) > 0:
        _lengthen(sequence, missing)
    return sequence


def _lengthen(sequence: TorchSequence, tokens: int) -> None:
    """Let every layer hold so many more tokens, copies of its last one: reading them would take most of the time."""
    layers: list[Any] = sequence.cache.layers
    for layer in layers:
        if getattr(layer, "keys", None) is not None:
            layer.update(*(states[..., -1:, :].repeat(1, 1, tokens, 1) for states in (layer.keys, layer.values)))
    sequence.advance(tokens)


def _forwards(counts: int) -> int:
    """By how many tokens a context may grow while it is measured."""
    return ROUNDS * counts


def _fits(sequence: TorchSequence, count: int, counts: int) -> bool:
    if count == 1:
        return True
    return sequence.level != "plain" and sequence.length + _forwards(counts) + count <= _end(sequence)


def _end(sequence: TorchSequence) -> int:
    """Where the model's context ends, or the one in which its rotary frequencies stay as they are."""
    traits = sequence.traits
    ends = [traits.positions, traits.rope.position if traits.rope else None]
    return min((end for end in ends if end is not None), default=sys.maxsize)


def _prompt(model: PreTrainedModel, size: int) -> list[int]:
    """Tokens of no meaning, but many different ones: which experts a mixture runs depends on them."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return torch.randint(vocabulary, (size,), generator=torch.Generator().manual_seed(0)).tolist()


def _time(sequence: TorchSequence, count: int) -> float:
    """Seconds of one forward of so many rows; it leaves the context one token longer."""
    tokens = _prompt(sequence.model, count)
    started = perf_counter()
    argmax(sequence.forward(tokens[:1], chain(tokens[1:]))).tolist()
    sequence.keep(())
    return perf_counter() - started
