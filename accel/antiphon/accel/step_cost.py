"""What a forward costs by how many rows it verifies, measured on the model at hand. Knows nothing of who drafts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from antiphon.accel.cache import CachedModel
from antiphon.accel.draft import chain
from antiphon.accel.probe import traits_of

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT = 256
REPEATS = 5


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one forward by its rows (the root and the draft's), after ``context`` tokens.

    Row counts that the model cannot verify in one forward are not there; one row, a plain step, always is.
    """

    context: int
    seconds: Mapping[int, float]

    def ratio(self, rows: int) -> float:
        """What a forward of so many rows costs in plain steps; between two numbers of rows, on the line.

        Raises:
            ValueError: so many rows were not measured.
        """
        if not 1 <= rows <= max(self.seconds):
            raise ValueError(f"rows is {rows}; from 1 to {max(self.seconds)} were measured.")
        return float(np.interp(rows, list(self.seconds), list(self.seconds.values()))) / self.seconds[1]

    def as_dict(self) -> dict[str, Any]:
        """The context and, by rows, milliseconds and the ratio to one row."""
        return {
            "context": self.context,
            "rows": list(self.seconds),
            "ms": [round(1000 * seconds, 3) for seconds in self.seconds.values()],
            "ratio": [round(self.ratio(rows), 3) for rows in self.seconds],
        }


@torch.no_grad()
def measure(
    model: PreTrainedModel, *, rows: Sequence[int] = ROWS, context: int = CONTEXT, repeats: int = REPEATS
) -> StepCost:
    """Time real forwards of the model over its cache, ``repeats`` for each number of rows, and take the medians.

    The numbers of rows take turns, so that what else the machine does weighs on all of them alike. A forward counts
    until its argmax is on the host, which is what a decoding step waits for. The context is shortened where the
    model's own ends before. Where recurrent state has to be replayed, the second forward after a draft that was only
    partly accepted is not counted.

    Raises:
        ValueError: ``rows``, ``context`` or ``repeats`` are not positive.
    """
    for name, value in {"rows": min(rows, default=0), "context": context, "repeats": repeats}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; at least 1 is needed to measure a step.")
    cached = CachedModel(model, traits_of(model))
    counts = sorted({1, *rows})
    runs = (1 + repeats) * len(counts)
    end = _end(cached)
    size = max(min(context, end - counts[-1] - runs), 1)
    cached.prefill(_prompt(model, size))
    cached.keep(())
    counts = [count for count in counts if count == 1 or (cached.level != "plain" and size + runs + count <= end)]
    for count in counts:  # the first forward of a shape is slower than all that follow
        _time(cached, count)
    rounds = [{count: _time(cached, count) for count in counts} for _ in range(repeats)]
    return StepCost(size, {count: median(times[count] for times in rounds) for count in counts})


def _end(cached: CachedModel) -> int:
    """Where the model's context ends, or the one in which its rotary frequencies stay as they are."""
    traits = cached.traits
    ends = [traits.positions, traits.rope.position if traits.rope else None]
    return min((end for end in ends if end is not None), default=sys.maxsize)


def _prompt(model: PreTrainedModel, size: int) -> list[int]:
    """Tokens of no meaning, but many different ones: which experts a mixture runs depends on them."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return torch.randint(vocabulary, (size,), generator=torch.Generator().manual_seed(0)).tolist()


def _time(cached: CachedModel, count: int) -> float:
    """Seconds of one forward of so many rows; it leaves the context one token longer."""
    tokens = _prompt(cached.model, count)
    started = perf_counter()
    cached.forward(tokens[:1], chain(tokens[1:])).argmax(dim=-1).tolist()
    seconds = perf_counter() - started
    cached.keep(())
    return seconds
