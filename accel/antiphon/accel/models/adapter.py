"""Merge a LoRA adapter into its base model, once; the result is a model folder for transformers."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphon.accel.files import verified_folder
from antiphon.accel.progress import Progress
from antiphon.accel.quiet_loading import quiet_loading

READER = Path(__file__).parent / "reader"
"""Folder of the bundled adapter."""

BASE = "smollm2"
"""Base model of adapters, as their configuration names it."""

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter, and no model that transformers can load directly."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def merge_adapter(adapter: Path, base: Callable[[], Path], models: Path, report: Progress) -> Path:
    """Merge an adapter into its base model, unless done before; return the folder of the merged model.

    Weights are merged in float32 and saved in bfloat16, as in the base model. The merged configuration has the prompt
    format "reader".

    Args:
        base: Function that returns the folder of the base model; only called if needed.
        models: Folder of model folders; the new folder is named after the adapter's content.
        report: Called with stage, done and total.

    Raises:
        ValueError: the adapter is incomplete, damaged, or made for another model.
    """
    check_adapter(adapter)
    folder = models / f"reader-{_fingerprint(adapter)[:8]}"
    return verified_folder(folder, lambda temporary: _merge(adapter, base, temporary, report))


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Suppress a deprecation warning that peft causes in transformers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        yield


_MERGING = "Merging the adapter into the language model, once"


def check_adapter(adapter: Path) -> None:
    """Raise ValueError if a folder has no adapter for `BASE`."""
    for name in (CONFIG, WEIGHTS):
        if not (adapter / name).is_file():
            raise ValueError(f"{adapter / name} is missing; an adapter is the two files {CONFIG} and {WEIGHTS}.")
    try:
        named = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{adapter / CONFIG} does not say which model the adapter is for.") from None
    if named != BASE:
        raise ValueError(
            f"The adapter {adapter} is for the model {named!r}; only adapters for {BASE!r} are merged, such as "
            "`python -m recipes.reader train` makes. Merge another one with peft and give the merged model's folder."
        )


def _fingerprint(adapter: Path) -> str:
    return hashlib.sha256((adapter / WEIGHTS).read_bytes() + (adapter / CONFIG).read_bytes()).hexdigest()


@quiet_loading()
def _merge(adapter: Path, base: Callable[[], Path], folder: Path, report: Progress) -> None:
    place = base()
    report(_MERGING, 0, 2)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    model = _adapted(loaded, adapter)
    report(_MERGING, 1, 2)
    model.config.prompt_format = "reader"
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(place).save_pretrained(folder)
    report(_MERGING, 2, 2)


def _adapted(model: Any, adapter: Path) -> Any:
    """Return the model with the adapter merged into its weights."""
    from peft import PeftModel

    with errors_as_value_error(adapter):
        return PeftModel.from_pretrained(model, adapter).merge_and_unload(safe_merge=True)


@contextmanager
def errors_as_value_error(adapter: Path) -> Iterator[None]:
    """Convert errors and warnings about an adapter that does not fit the model to ValueError."""
    from safetensors import SafetensorError

    with quiet_peft():
        warnings.filterwarnings("error", message="Found missing adapter keys")  # peft only warns about them
        try:
            yield
        except (ValueError, RuntimeError, UserWarning, SafetensorError) as error:
            raise ValueError(f"The adapter {adapter} does not fit the model {BASE!r} ({error}).") from error
