"""The bandwidth floor: what a step takes at least, because weights and cache have to be read, beside what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from antiphon.accel.step_cost import StepCost

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
COPIED = {"cpu": 2**28, "cuda": 2**31}
"""Bytes that are copied to find the rate: far more than any cache of the device holds."""


@dataclass(frozen=True, slots=True)
class Floor:
    """A model's bytes, the measured copy rate in bytes a second, and the measured cost of a step by its rows."""

    weights: int
    cache: int
    rate: float
    cost: StepCost

    @property
    def seconds(self) -> float:
        """What reading weights and cache once takes at the copy rate: no step that uses all of them is faster."""
        return (self.weights + self.cache) / self.rate

    def as_dict(self) -> dict[str, Any]:
        """All figures; ``of_floor`` says for each number of rows how many floors a step takes."""
        return {
            "weights_bytes": self.weights,
            "cache_bytes": self.cache,
            "copy_gb_per_s": round(self.rate / 1e9, 2),
            "floor_ms": round(1000 * self.seconds, 3),
            **self.cost.as_dict(),
            "of_floor": [round(seconds / self.seconds, 3) for seconds in self.cost.seconds.values()],
        }


def measure(
    model: PreTrainedModel, *, rows: Sequence[int] = ROWS, context: int = 1024, copied: int | None = None
) -> Floor:
    """Measure the device and the model.

    Raises:
        ValueError: ``rows`` or ``context`` are not positive.
    """
    from antiphon.accel.step_cost import measure as measure_steps

    cost = measure_steps(model, rows=rows, context=context)
    rate = copy_rate(model.device, copied or COPIED.get(model.device.type, COPIED["cpu"]))
    return Floor(read_bytes(model), round(cache_bytes(model) * cost.context), rate, cost)


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
