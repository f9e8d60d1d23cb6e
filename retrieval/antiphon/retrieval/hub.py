"""Models of the Hugging Face hub: what its cache holds is used as it is, so that no answer depends on the network."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from antiphon.retrieval.device import precision

Model = TypeVar("Model")


def load_model(
    kind: str, source: str, load: Callable[[bool], Model], *, is_cached: bool, local_files_only: bool = False
) -> Model:
    """What ``load(local_files_only)`` returns: from the cache if it is there, else from the hub.

    Raises:
        ValueError: the model cannot be had; ``kind`` says what for.
    """
    try:
        if is_cached or local_files_only:
            try:
                return load(True)
            except OSError:
                if local_files_only:
                    raise  # else the cache holds a part of it, and the hub has the rest
        return load(False)
    except OSError as error:
        advice = "check the name and the network, or take one that needs none"
        raise ValueError(
            f"The {kind} {source!r} cannot be loaded from the hub or its cache; {advice}. ({_first_line(error)})"
        ) from error


def loading_options(device: str, local_files_only: bool) -> dict[str, Any]:
    """What transformers loads a model with; where the cache is to do, it does not ask the hub for an adapter either."""
    return {"dtype": precision(device), "adapter_kwargs": {"local_files_only": local_files_only}}


def cached(source: str, file: str, revision: str | None = None) -> Path | None:
    """Where the cache keeps a file of a model of the hub; None if it does not."""
    from huggingface_hub import try_to_load_from_cache

    if Path(source).exists():
        return None
    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    found = try_to_load_from_cache(source, file, cache_dir=folder, revision=revision)
    return Path(found) if isinstance(found, str) else None


def weights_of(source: str, revision: str | None = None) -> str:
    """What tells one set of weights from another: the hub's commit, or a checksum of a folder's files."""
    folder = Path(source)
    if not folder.is_dir():
        snapshot = cached(source, "config.json", revision) or cached(source, "modules.json", revision)
        return f"{source}@{snapshot.parent.name if snapshot else revision}"
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.resolve().rglob("*") if path.suffix in (".safetensors", ".bin")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256-{digest.hexdigest()[:16]}"


def _first_line(error: OSError) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
