"""Weights of models on the Hugging Face hub: whether the local cache has them, and their download with progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from antiphon.accel.files import free_space

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Files of weights, of which the first that exists is loaded; ``NAME.index.json`` lists the parts of a divided one."""

MEGABYTE = 10**6

Report = Callable[[str, int, int], None]
"""Called with a stage, the megabytes that are done, and those in all."""


class DiskTooSmallError(ValueError):
    """The weights are larger than the free space of the disk."""


def cached_file(name: str, file: str, *, cache: str | None = None, revision: str | None = None) -> Path | None:
    """Return the path of a file of a hub model in the cache, or None.

    Args:
        name: Name of the model on the hub.
        file: Name of the file.
        cache: Folder of the cache; default the hub's.
        revision: Commit or branch.
    """
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, file, cache_dir=cache, revision=revision)
    return Path(found) if isinstance(found, str) else None


def parts_of_weights(index: Path) -> list[str]:
    """Return the names of the files that an index of divided weights lists.

    Args:
        index: Such as ``model.safetensors.index.json``.
    """
    weights: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return sorted(set(weights.values()))


def download_weights(name: str, report: Report, *, cache: str | None = None) -> None:
    """Download the weights of a model that are not in the hub's cache yet. An interrupted download is continued.

    Nothing is requested if all are there, or in offline mode.

    Args:
        name: Name of a model on the hub.
        report: Called with a stage, the megabytes that are there, and those of all missing files.
        cache: Folder of the cache; default the hub's.

    Raises:
        DiskTooSmallError: The disk has too little space.
        ValueError: The download fails.
    """
    from huggingface_hub import HfApi, constants, hf_hub_download

    if constants.HF_HUB_OFFLINE or _are_cached(name, cache):
        return
    try:
        found = HfApi().model_info(name, files_metadata=True).siblings or ()
        sizes = {each.rfilename: each.size or 0 for each in found}
        files = _weight_files(name, sizes, cache)
        missing = {file: sizes.get(file, 0) for file in files if cached_file(name, file, cache=cache) is None}
        before, total = 0, sum(missing.values())
        _check_space(name, total, Path(cache or constants.HF_HUB_CACHE))
        for file, size in missing.items():
            bar = _bar(f"Downloading {name}, MB", before, total, report)
            hf_hub_download(name, file, cache_dir=cache, tqdm_class=bar)
            before += size
    except ValueError:
        raise
    except Exception as error:  # the HTTP library's errors differ by version
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"The weights of {name!r} cannot be downloaded ({reason}). What has arrived is kept: run the command again."
        ) from error


def _are_cached(name: str, cache: str | None) -> bool:
    """Return whether all files of the weights are in the hub's cache."""
    for whole in WEIGHTS:
        if (index := cached_file(name, f"{whole}.index.json", cache=cache)) is not None:
            return all(cached_file(name, file, cache=cache) for file in parts_of_weights(index))
        if cached_file(name, whole, cache=cache) is not None:
            return True
    return False


def _weight_files(name: str, files: Mapping[str, int], cache: str | None) -> list[str]:
    """Return the files that transformers loads the weights from; none for other formats, which it downloads itself."""
    from huggingface_hub import hf_hub_download

    for whole in WEIGHTS:
        if whole in files:
            return [whole]
        if (index := f"{whole}.index.json") in files:
            return parts_of_weights(Path(hf_hub_download(name, index, cache_dir=cache)))
    return []


def _check_space(name: str, needed: int, cache: Path) -> None:
    """Raise DiskTooSmallError if the disk of the hub's cache has too little space."""
    if (free := free_space(cache)) < needed:
        raise DiskTooSmallError(
            f"The weights of {name!r} need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free in {cache}; "
            "free some, or set HF_HOME to a folder on another disk."
        )


def _bar(stage: str, before: int, total: int, report: Report) -> type[Any]:
    """Return a class of progress bars that print nothing, and report the bytes of a file.

    Args:
        stage: Name of the stage.
        before: Bytes of the files before.
        total: Bytes of all files.
        report: Called with the stage, the megabytes so far, and all.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"file": StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            report(stage, min(before + int(self.n), total) // MEGABYTE, total // MEGABYTE)
            return shown

    return Bar
