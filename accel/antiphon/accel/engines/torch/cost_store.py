"""Store step costs: a small JSON file per model, machine and setting in the user's cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.files import write_cache_file
from antiphon.accel.processor import LoadMeter, processor_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MIN_SECONDS = 5e-3
"""Costs whose plain step takes less than this many seconds are always credible: errors of this size do not matter."""

MAX_INVERSION, MIN_REMEASURED = 1.5, 0.75
"""Other processes disturbed a measurement if a forward pass took more than 1.5 times as long as a
pass with more rows, or if a plain step now takes less than 0.75 of the stored time."""


MAX_MEASUREMENTS = 3
"""Number of combined measurements that are used even if implausible, until the machine is quiet."""


def cost_key(model: PreTrainedModel, *, graphs: bool = False) -> dict[str, str]:
    """Return a description of everything that affects the cost of a model's forward passes."""
    import torch
    import transformers

    from antiphon.accel.engines.torch.attention import implementation_of
    from antiphon.accel.engines.torch.cost_measurement import STEP_VERSION

    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    return {
        "config": hashlib.sha256(model.config.to_json_string().encode()).hexdigest(),
        "parameters": str(model.num_parameters()),
        "attention": implementation_of(model),
        "devices": ", ".join([*devices, *_hardware()]),
        "dtype": str(model.dtype),
        "graphs": str(graphs),
        "training": str(model.training),
        "threads": str(torch.get_num_threads()),
        "steps": str(STEP_VERSION),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def cost_file(key: dict[str, str]) -> Path:
    """Return the path of the file that stores the cost with this key."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "step-costs" / f"{digest[:32]}.json"


def load(path: Path, key: dict[str, str]) -> StepCost | None:
    """Load the cost in a file; return None if the file is missing or damaged, or belongs to another key."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        seconds = {
            int(context): {int(rows): float(spent) for rows, spent in row.items()}
            for context, row in found["seconds"].items()
        }
        change, packing, measurements = float(found["change"]), float(found["packing"]), int(found["measurements"])
        is_quiet = bool(found["quiet"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_whole = bool(seconds) and all(1 in row and min(row.values()) > 0 for row in seconds.values())
    is_sound = is_whole and change >= 0 and packing >= 0
    return StepCost(seconds, change, packing, measurements, is_quiet) if is_sound and found.get("key") == key else None


def load_credible(path: Path, key: dict[str, str], plain_seconds: Callable[[int], float]) -> StepCost | None:
    """Load the cost in a file; return None if the cost must be measured.

    It must be measured if the file has no credible cost, if a plain step is now much faster, or if
    the cost was measured on a busy machine that is quiet now.

    Args:
        plain_seconds: Function that measures a plain step after a number of cached tokens.
    """
    cost = load(path, key)
    if cost is None or not is_credible(cost):
        return None
    (context, row), *_ = cost.seconds.items()
    if row[1] <= MIN_SECONDS:
        return cost
    meter = LoadMeter()
    is_slower = plain_seconds(context) < MIN_REMEASURED * row[1]
    return None if is_slower or (not cost.is_quiet and meter.is_quiet(waits=True)) else cost


def is_credible(cost: StepCost) -> bool:
    """Return whether these costs are plausible for an idle machine.

    The machine must have been quiet, more rows must not take less time, and a change of the number
    of rows must cost less than a plain step. Costs of very short steps, and costs from
    `MAX_MEASUREMENTS` measurements, are always credible.
    """
    row, *others = cost.seconds.values()
    if cost.measurements >= MAX_MEASUREMENTS or row[1] <= MIN_SECONDS:
        return True
    return cost.is_quiet and cost.shape_change < row[1] and all(map(_ascends, (row, *others)))


def _ascends(row: Mapping[int, float]) -> bool:
    seconds = list(row.values())[::-1]
    return all(one <= MAX_INVERSION * least for one, least in zip(seconds, accumulate(seconds, min), strict=True))


def save(path: Path, key: dict[str, str], cost: StepCost, *, combines: bool = True) -> StepCost:
    """Store a cost, changed so that more rows never take less time, and return it.

    Other processes can only make passes slower. So if the new cost is not credible, each new time
    that exceeds the stored time is replaced by the stored time. After a few starts the cost is
    credible.
    """
    earlier = load(path, key) if combines and not is_credible(cost) else None
    if earlier is not None:
        cost = StepCost(
            {context: _least(row, earlier.seconds.get(context, {})) for context, row in cost.seconds.items()},
            min(cost.shape_change, earlier.shape_change),
            min(cost.packing, earlier.packing),
            1 + earlier.measurements,
            cost.is_quiet,
        )
    is_quiet = cost.is_quiet and is_credible(replace(cost, measurements=1))
    cost = replace(cost.isotonic(), is_quiet=is_quiet)
    found = {"key": key, "seconds": cost.seconds, "change": cost.shape_change, "packing": cost.packing}
    found |= {"measurements": cost.measurements, "quiet": cost.is_quiet}
    write_cache_file(path, json.dumps(found).encode())
    return cost


def _least(row: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    return {count: min(row.get(count, inf), other.get(count, inf)) for count in sorted({*row, *other})}


def _hardware() -> list[str]:
    import torch

    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [processor_name(), torch.backends.cpu.get_cpu_capability()]
