"""The bandwidth floor: what a step takes at least, because weights and cache have to be read, beside what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from antiphon.accel.drafting.draft import Accepted, Draft, Logits, Tokens, chain
from antiphon.pipelines.benchmark.follow import Follower

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
REPEATS = 7
WARM_UP = 2
"""Steps of each number of rows that do not count: what is compiled is compiled in them."""

COPIED = {"cpu": 2**28, "cuda": 2**31}
"""Bytes that are copied to find the rate: far more than any cache of the device holds."""


@dataclass(frozen=True, slots=True)
class Floor:
    """A model's bytes, the measured copy rate in bytes a second, and the measured seconds of a step by its rows."""

    weights: int
    cache: int
    rate: float
    context: int
    steps: Mapping[int, float]

    @property
    def seconds(self) -> float:
        """What reading weights and cache once takes at the copy rate: no step that uses all of them is faster."""
        return (self.weights + self.cache) / self.rate

    def as_dict(self) -> dict[str, Any]:
        """All figures; ``ratio`` says how many plain steps one of so many rows takes, ``of_floor`` how many floors."""
        return {
            "weights_bytes": self.weights,
            "cache_bytes": self.cache,
            "copy_gb_per_s": round(self.rate / 1e9, 2),
            "floor_ms": round(1000 * self.seconds, 3),
            "context": self.context,
            "rows": list(self.steps),
            "ms": [round(1000 * seconds, 3) for seconds in self.steps.values()],
            "ratio": [round(seconds / self.steps[1], 3) for seconds in self.steps.values()],
            "of_floor": [round(seconds / self.seconds, 3) for seconds in self.steps.values()],
        }


def measure_floor(
    model: PreTrainedModel, *, rows: Sequence[int] = ROWS, context: int = 1024, copied: int | None = None
) -> Floor:
    """Measure the device and the model.

    Raises:
        ValueError: ``rows`` or ``context`` are not positive.
    """
    steps = step_seconds(model, rows, context)
    rate = copy_rate(model.device, copied or COPIED.get(model.device.type, COPIED["cpu"]))
    return Floor(read_bytes(model), round(cache_bytes(model) * context), rate, context, steps)


def step_seconds(model: PreTrainedModel, rows: Sequence[int], context: int) -> dict[int, float]:
    """Seconds of decoding steps of so many rows (the root and the draft's), by the rows that were really verified.

    They are steps of the decoder itself, as it would take them, compiled ones where it compiles; the model is led, so
    that each emits one token. The numbers of rows take turns, and the medians count.

    Raises:
        ValueError: ``rows`` or ``context`` are not positive, or the model's own context is too short.
    """
    from antiphon.accel.engines.torch.engine import traits_of
    from antiphon.accel.generate import stream

    for name, value in {"rows": min(rows, default=0), "context": context}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; at least 1 is needed to measure a step.")
    counts = sorted({1, *rows})
    length = 1 + (WARM_UP + REPEATS) * len(counts)
    traits = traits_of(model)
    if traits.positions is not None and context + length + counts[-1] > traits.positions:
        needed = context + length + counts[-1]
        raise ValueError(f"Steps after {context} tokens need {needed} positions, and the model has {traits.positions}.")
    said, guessed = _ordinary(model)
    with Follower(model, end=said, longest=length) as follower:
        follower.follow(context, [said] * length)
        ids = torch.full((1, context), said, device=model.device)
        options: dict[str, Any] = {"max_new_tokens": length + counts[-1], "do_sample": False, "num_beams": 1}
        options["attention_mask"] = torch.ones_like(ids)
        drafter = _Chains([count - 1 for count in counts], guessed)
        steps = list(islice(stream(model, ids, drafter=lambda: drafter, rows=counts[-1] - 1, **options), length))
    taken: dict[int, list[float]] = {}
    for step in steps[1 + WARM_UP * len(counts) :]:
        taken.setdefault(1 + step.drafted, []).append(step.seconds - step.draft_seconds)
    return {count: median(taken[count]) for count in sorted(taken)}


class _Chains:
    """Drafts chains of a token that nobody says, of each length in turn."""

    def __init__(self, lengths: Sequence[int], token: int) -> None:
        self._lengths = cycle(lengths)
        self._token = token

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """There is nothing to read."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """The next length's chain."""
        return chain([self._token] * next(self._lengths))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """There is nothing to learn."""


def _ordinary(model: Any) -> tuple[int, int]:
    """Two tokens that do not end a text."""
    end = model.generation_config.eos_token_id
    ends = set(end) if isinstance(end, list) else {end}
    one, other, *_ = (token for token in range(len(ends) + 2) if token not in ends)
    return one, other


def copy_rate(device: torch.device, size: int, *, repeats: int = 7) -> float:
    """Bytes a second of copying ``size`` bytes on the device, read and written ones both counted."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(1 + repeats):  # the first touches the memory
        _synchronize(device)
        started = perf_counter()
        target.copy_(source)
        _synchronize(device)
        times.append(perf_counter() - started)
    return 2 * size / median(times[1:])


def read_bytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that a step reads: all but an embedding table of its own, of which it reads a few rows."""
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    table: Any = getattr(inputs, "weight", None)
    is_read = table is None or table is getattr(outputs, "weight", None)
    total = sum(weight.nbytes for weight in model.parameters())
    return total if is_read else total - int(table.nbytes)


@torch.no_grad()
def cache_bytes(model: PreTrainedModel, tokens: int = 8) -> float:
    """Bytes of keys and values for each token, counted in a cache of a few."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(input_ids=torch.zeros((1, tokens), dtype=torch.long, device=model.device), past_key_values=cache)
    held = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    return sum(int(tensor.nbytes) for tensor in held if tensor is not None) / tokens


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
