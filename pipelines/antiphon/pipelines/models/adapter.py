"""A LoRA adapter and the model it was trained on, merged once into a model of its own that transformers loads.

Knows nothing of how an adapter is trained, nor of where its base comes from.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphon.pipelines.models.verified_folder import sealed
from antiphon.pipelines.progress import Progress

READER = Path(__file__).parent / "reader"
"""The folder of the adapter that ships with the package."""

BASE = "smollm2"
"""The model that adapters are merged into, as their configuration names it."""

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and no model that transformers would load as it is."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def merged(adapter: Path, base: Callable[[], Path], models: Path, report: Progress = lambda *_: None) -> Path:
    """The folder, in ``models``, of the base with the adapter merged: in float32, saved in bfloat16 as the base is.

    It is named after the adapter's content, and made once; ``base`` gives the base's folder and is asked only then.
    The merged configuration names the prompt format "reader".

    Raises:
        ValueError: the adapter is incomplete, damaged, or made for another model.
        ImportError: the package peft is missing.
    """
    _check(adapter)
    folder = models / f"reader-{_fingerprint(adapter)[:8]}"
    return sealed(folder, lambda beside: _merge(adapter, base, beside, report))


def further(model: Any, adapter: Path) -> Any:
    """The model with the adapter beside its weights, to be trained on.

    Raises:
        ValueError: the adapter is incomplete, damaged, or made for another model.
    """
    from peft import PeftModel

    _check(adapter)
    with _fitting(adapter):
        return PeftModel.from_pretrained(model, adapter, is_trainable=True)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Leave out the warning that peft causes by asking transformers for a name that has changed since."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        yield


_MERGING = "Merging the adapter into the language model, once"


def _check(adapter: Path) -> None:
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
            "`python -m recipes.reader train` makes. Merge another one with peft, and give the folder of the merged model."
        )


def _fingerprint(adapter: Path) -> str:
    return hashlib.sha256((adapter / WEIGHTS).read_bytes() + (adapter / CONFIG).read_bytes()).hexdigest()


def _merge(adapter: Path, base: Callable[[], Path], folder: Path, report: Progress) -> None:
    if importlib.util.find_spec("peft") is None:
        raise ImportError("An adapter is merged with the package peft; run: pip install 'antiphon[local]'")
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
    """The model with the adapter in its weights."""
    from peft import PeftModel

    with _fitting(adapter):
        return PeftModel.from_pretrained(model, adapter).merge_and_unload(safe_merge=True)


@contextmanager
def _fitting(adapter: Path) -> Iterator[None]:
    """Refuse an adapter that does not fit, in whole or in part."""
    from safetensors import SafetensorError

    with quiet_peft():
        warnings.filterwarnings("error", message="Found missing adapter keys")  # peft would only warn
        try:
            yield
        except (ValueError, RuntimeError, UserWarning, SafetensorError) as error:
            raise ValueError(f"The adapter {adapter} does not fit the model {BASE!r} ({error}).") from error
