"""Step costs that outlast the process: one small JSON file for each model, machine and setting, in the user's cache.

Knows nothing of what they are used for. A file that cannot be read is measured again.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import transformers
from platformdirs import user_cache_dir
from transformers import PreTrainedModel

from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.engines.torch.attention import implementation_of
from antiphon.accel.engines.torch.measuring import STEPS
from antiphon.accel.files import write

LEAST = 5e-3
"""Plain steps of fewer seconds are not doubted: noise of that size decides nothing."""

ODD, STALE = 1.5, 0.6
"""Costs were measured while others had the machine where fewer rows took so many times what more rows took, or where a
plain step now takes less than so much of what was measured."""


def describe(model: PreTrainedModel, prepacked: int, *, steps: int = STEPS) -> dict[str, str]:
    """All that a cost depends on; ``prepacked`` layers have prepacked weights, and ``steps`` are run in this way."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    return {
        "config": hashlib.sha256(model.config.to_json_string().encode()).hexdigest(),
        "parameters": str(model.num_parameters()),
        "attention": implementation_of(model),
        "devices": ", ".join([*devices, *_hardware()]),
        "dtype": str(model.dtype),
        "prepacked": str(prepacked),
        "training": str(model.training),
        "threads": str(torch.get_num_threads()),
        "steps": str(steps),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def file_of(key: dict[str, str]) -> Path:
    """Where the cost of what ``key`` describes is kept."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return Path(user_cache_dir("antiphon")) / "step-costs" / f"{digest[:32]}.json"


def load(path: Path, key: dict[str, str]) -> StepCost | None:
    """The cost in a file, or None where there is none that is whole and of this key."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        seconds = {
            int(context): {int(rows): float(spent) for rows, spent in row.items()}
            for context, row in found["seconds"].items()
        }
        change, packing = float(found["change"]), float(found["packing"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_whole = bool(seconds) and all(1 in row and min(row.values()) > 0 for row in seconds.values())
    is_sound = is_whole and change >= 0 and packing >= 0
    return StepCost(seconds, change, packing) if is_sound and found.get("key") == key else None


def kept(path: Path, key: dict[str, str], plain: Callable[[int], float]) -> StepCost | None:
    """The cost in a file, unless it is none that an idle machine has; ``plain`` takes a plain step's seconds now.

    It is given the tokens before that step.
    """
    cost = load(path, key)
    if cost is None or not is_credible(cost):
        return None
    (context, row), *_ = cost.seconds.items()
    return None if row[1] > LEAST and plain(context) < STALE * row[1] else cost


def is_credible(cost: StepCost) -> bool:
    """Whether an idle machine can have these costs: more rows take no less time, and a change of them not a step's."""
    row, *others = cost.seconds.values()
    return row[1] <= LEAST or (cost.change < row[1] and all(map(_ascends, (row, *others))))


def _ascends(row: Mapping[int, float]) -> bool:
    seconds = list(row.values())[::-1]
    return all(one <= ODD * least for one, least in zip(seconds, accumulate(seconds, min), strict=True))


def save(path: Path, key: dict[str, str], cost: StepCost) -> None:
    """Keep the cost in this file, if it is credible."""
    if not is_credible(cost):
        return
    found = {"key": key, "seconds": cost.seconds, "change": cost.change, "packing": cost.packing}
    write(path, json.dumps(found).encode())


def _hardware() -> list[str]:
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [platform.processor() or platform.machine(), torch.backends.cpu.get_cpu_capability()]
