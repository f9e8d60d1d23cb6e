"""Load models from the Hugging Face hub. A cached model is used even if the hub has a newer version."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from antiphon.accel import hub_download
from antiphon.accel.files import sha256
from antiphon.accel.progress import Progress
from antiphon.accel.quiet_loading import quiet_loading
from antiphon.retrieval.encoder_runtime.device import pick_precision

Model = TypeVar("Model")

HUB_NAMES = {"bge-m3": "BAAI/bge-m3", "bge-reranker-v2-m3": "BAAI/bge-reranker-v2-m3"}
"""Short names of models, and their names on the hub."""


_MODEL_FILES = (".safetensors", ".bin", ".json", ".txt", ".model")

OWN_CODE = (
    "{} needs code of its own (trust_remote_code), which is not run here. Take a model without own code, or serve it "
    "with vLLM, Text Embeddings Inference or another program with OpenAI's protocol, and give its address "
    "(http://HOST:PORT/v1#MODEL)."
)
"""The error message for a model that needs its own Python code."""


def load_model(kind: str, source: str, load: Callable[[bool], Model], *, is_cached: bool) -> Model:
    """Load a model from the cache, or from the hub if it is not cached.

    Args:
        kind: The kind of model, such as "embedder", for the error message.
        load: Function that loads the model. Its argument is True if the function must not access
            the hub.
        is_cached: Whether the cache contains the model or a part of it.

    Raises:
        ValueError: The model cannot be loaded.
    """
    try:
        with quiet_loading():
            if is_cached:
                with suppress(OSError):  # the cache may be incomplete: load the rest from the hub
                    return load(True)
            return load(False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(OWN_CODE.format(f"The {kind} {source!r}")) from error
    except OSError as error:
        advice = "check the name and the network, or take one that needs none"
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"The {kind} {source!r} cannot be loaded from the hub or its cache; {advice}. ({message})"
        ) from error


def loading_options(device: str, local_files_only: bool) -> dict[str, Any]:
    """Return the arguments with which transformers loads a model.

    Args:
        device: The device; it determines the precision.
        local_files_only: Do not access the hub, not even to look for an adapter.
    """
    return {"dtype": pick_precision(device), "adapter_kwargs": {"local_files_only": local_files_only}}


def download_models(names: Sequence[str], report: Progress) -> None:
    """Download the weights of hub models that are not cached, with progress in megabytes.

    Args:
        report: Called with a stage, the megabytes done, and the total megabytes.

    Raises:
        DiskTooSmallError: The disk has too little space. Other errors are left for `load_model`.
    """
    for name in names:
        try:
            hub_download.download_weights(name, report, cache=_cache())
        except hub_download.DiskTooSmallError:
            raise
        except ValueError:
            continue


def cached_file(source: str, file: str) -> Path | None:
    """Return the path of a hub model's file in the cache; None if the file is not cached."""
    if Path(source).exists():
        return None
    return hub_download.cached_file(source, file, cache=_cache())


def weights_fingerprint(source: str) -> str:
    """Return an identifier of the model: the commit on the hub, or a checksum of a folder's weights and settings."""
    folder = Path(source)
    if not folder.is_dir():
        snapshot = cached_file(source, "config.json") or cached_file(source, "modules.json")
        return f"{source}@{snapshot.parent.name if snapshot else None}"
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.resolve().rglob("*") if path.suffix in _MODEL_FILES):
        digest.update(path.relative_to(folder.resolve()).as_posix().encode())
        digest.update(bytes.fromhex(sha256(path)))
    return f"sha256-{digest.hexdigest()[:16]}"


def _cache() -> str | None:
    """Return the folder that sentence-transformers uses instead of the hub's cache, or None."""
    return os.environ.get("SENTENCE_TRANSFORMERS_HOME")
