"""Step costs that outlast the process: one small JSON file for each model, machine and setting, in the user's cache.

Knows nothing of what they are used for. A file that cannot be read is measured again.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from platformdirs import user_cache_dir
from transformers import PreTrainedModel

from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.engines.torch.attention import implementation_of
from antiphon.accel.engines.torch.measuring import STEPS, measure
from antiphon.accel.engines.torch.prepacked import choice, prepacked
from antiphon.accel.files import write

_costs: WeakKeyDictionary[PreTrainedModel, dict[tuple[object, ...], StepCost]] = WeakKeyDictionary()


def step_cost(model: PreTrainedModel, *, anew: bool = False) -> StepCost:
    """What a forward of this model costs: as it was measured here before, or measured now (under two seconds).

    It is kept for as long as the model lives, and in a file for the next process. ``anew`` measures in any case.

    Raises:
        ValueError: the model is not a causal language model with a key-value cache.
    """
    known, setting = _costs.setdefault(model, {}), _setting(model)
    if anew or setting not in known:
        key = describe(model)
        path = file_of(key)
        cost = None if anew else load(path, key)
        if cost is None:
            cost = measure(model)
            save(path, key, cost)
        known[setting] = cost
    return known[setting]


def assume(model: PreTrainedModel, cost: StepCost) -> None:
    """Take this for what a forward of the model costs in its present setting, instead of measuring it."""
    _costs.setdefault(model, {})[_setting(model)] = cost


def describe(model: PreTrainedModel) -> dict[str, str]:
    """All that a cost depends on."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    return {
        "config": hashlib.sha256(model.config.to_json_string().encode()).hexdigest(),
        "parameters": str(model.num_parameters()),
        "attention": implementation_of(model),
        "devices": ", ".join([*devices, *_hardware()]),
        "dtype": str(model.dtype),
        "prepacked": str(len(prepacked(model))),
        "training": str(model.training),
        "threads": str(torch.get_num_threads()),
        "steps": str(STEPS),
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
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_whole = bool(seconds) and all(1 in row and min(row.values()) > 0 for row in seconds.values())
    return StepCost(seconds) if is_whole and found.get("key") == key else None


def save(path: Path, key: dict[str, str], cost: StepCost) -> None:
    """Keep the cost in this file."""
    write(path, json.dumps({"key": key, "seconds": cost.seconds}).encode())


def _setting(model: PreTrainedModel) -> tuple[object, ...]:
    """What may change of a model while it lives."""
    threads = torch.get_num_threads()
    return implementation_of(model), model.dtype, str(model.device), threads, choice(model), model.training


def _hardware() -> list[str]:
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [platform.processor() or platform.machine(), torch.backends.cpu.get_cpu_capability()]
