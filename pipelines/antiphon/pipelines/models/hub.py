"""Models of the Hugging Face hub: whether a name can be loaded, and the download of weights with progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

from antiphon.accel.files import free_space
from antiphon.pipelines.progress import Progress

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Files of weights, of which the first that exists is loaded; ``NAME.index.json`` lists the parts of a divided one."""

MEGABYTE = 10**6


def find_on_hub(name: str, wanted: str, bundled: Sequence[str]) -> str:
    """Return the name if the hub or its local cache has it, after at most one HTTP request without retries.

    Args:
        name: Name of a model on the hub.
        wanted: Phrase for messages with the names that can be given.
        bundled: Names of bundled models, one of which may be meant.

    Raises:
        ValueError: There is no such model, it may not be read, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if _cached(name, "config.json") is not None:
        return name
    if "/" not in name and (meant := get_close_matches(name.lower(), bundled, n=1)):
        raise ValueError(f"There is no model {name!r}; did you mean {meant[0]!r}?")
    try:
        HfApi().auth_check(name)
    except GatedRepoError:
        raise ValueError(f"The model {name!r} is gated: accept its terms on the hub, then run: hf auth login") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ValueError(f"The hub has no model {name!r} that you may read; {wanted}.") from None
    except Exception as error:  # the HTTP library's errors differ by version
        raise ValueError(
            f"The model {name!r} is not on this machine and the hub cannot be reached ({error}); {wanted}."
        ) from error
    return name


def download_weights(name: str, report: Progress) -> None:
    """Download the weights of a model that are not in the hub's cache yet. An interrupted download is continued.

    Nothing is requested if all are there, or in offline mode.

    Args:
        name: Name of a model on the hub.
        report: Called with a stage, the megabytes that are there, and those of all missing files.

    Raises:
        ValueError: The disk has too little space, or the download fails.
    """
    from huggingface_hub import HfApi, constants, hf_hub_download

    if constants.HF_HUB_OFFLINE or _are_cached(name):
        return
    try:
        found = HfApi().model_info(name, files_metadata=True).siblings or ()
        sizes = {each.rfilename: each.size or 0 for each in found}
        missing = {file: sizes.get(file, 0) for file in _weight_files(name, sizes) if _cached(name, file) is None}
        before, total = 0, sum(missing.values())
        _check_space(name, total, Path(constants.HF_HUB_CACHE))
        for file, size in missing.items():
            hf_hub_download(name, file, tqdm_class=_bar(f"Downloading {name}, MB", before, total, report))
            before += size
    except ValueError:
        raise
    except Exception as error:  # the HTTP library's errors differ by version
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"The weights of {name!r} cannot be downloaded ({reason}). What has arrived is kept: run the command again."
        ) from error


def _cached(name: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, file)
    return Path(found) if isinstance(found, str) else None


def _are_cached(name: str) -> bool:
    """Return whether all files of the weights are in the hub's cache."""
    for whole in WEIGHTS:
        if (index := _cached(name, f"{whole}.index.json")) is not None:
            return all(_cached(name, file) for file in _parts(index))
        if _cached(name, whole) is not None:
            return True
    return False


def _weight_files(name: str, files: Mapping[str, int]) -> list[str]:
    """Return the files that transformers loads the weights from; none for other formats, which it downloads itself."""
    from huggingface_hub import hf_hub_download

    for whole in WEIGHTS:
        if whole in files:
            return [whole]
        if (index := f"{whole}.index.json") in files:
            return _parts(Path(hf_hub_download(name, index)))
    return []


def _parts(index: Path) -> list[str]:
    weights: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return sorted(set(weights.values()))


def _check_space(name: str, needed: int, cache: Path) -> None:
    """Raise ValueError if the disk of the hub's cache has too little space."""
    if (free := free_space(cache)) < needed:
        raise ValueError(
            f"The weights of {name!r} need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free in {cache}; "
            "free some, or set HF_HOME to a folder on another disk."
        )


def _bar(stage: str, before: int, total: int, report: Progress) -> type[Any]:
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
