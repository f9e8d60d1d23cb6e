"""Find models on the hub and their weights in the local cache, or download the weights with progress."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path
from typing import Any

from antiphon.accel.files import free_space
from antiphon.accel.progress import Progress

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Weight files; the first that exists is loaded. ``NAME.index.json`` lists a file's shards."""

PATTERNS = (
    ("model.safetensors",),
    ("model.safetensors.index.json", "model-*.safetensors"),
    ("pytorch_model.bin",),
    ("pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
"""Groups of names of weight files. Transformers loads the first group whose first file exists."""

MEGABYTE = 10**6


class DiskTooSmallError(ValueError):
    """The weights are larger than the free space of the disk."""


def cached_file(name: str, file: str, *, cache: str | None = None, revision: str | None = None) -> Path | None:
    """Return the path of a hub model's file in the cache; None if the file is not cached.

    Args:
        cache: Folder of the cache; None: the hub's default.
    """
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, file, cache_dir=cache, revision=revision)
    return Path(found) if isinstance(found, str) else None


def parts_of_weights(index: Path) -> list[str]:
    """Return the file names that an index of sharded weights lists."""
    weights: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return sorted(set(weights.values()))


def download_weights(name: str, report: Progress, *, cache: str | None = None) -> None:
    """Download the weight files that are not in the hub's cache. An interrupted download is continued.

    In offline mode, or if all files are cached, no request is sent. Weights in other formats than
    `PATTERNS` are left to transformers.

    Args:
        report: Called with a stage, the megabytes done, and the total megabytes of all missing files.
        cache: Folder of the cache; None: the hub's default.

    Raises:
        DiskTooSmallError: The disk has too little space.
        ValueError: The download fails.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    if constants.HF_HUB_OFFLINE or _are_cached(name, cache):
        return
    try:
        files = HfApi().model_info(name, files_metadata=True).siblings or ()
        sizes = {file.rfilename: file.size or 0 for file in files}
        patterns = next((group for group in PATTERNS if group[0] in sizes), ())
        wanted = [file for file in sizes if any(fnmatch(file, pattern) for pattern in patterns)]
        missing = sum(sizes[file] for file in wanted if cached_file(name, file, cache=cache) is None)
        _check_space(name, missing, Path(cache or constants.HF_HUB_CACHE))
        if wanted:
            bar = _bar(f"Downloading {name}, MB", missing, report)
            # One file at a time, so that the reported megabytes never decrease.
            snapshot_download(name, cache_dir=cache, allow_patterns=[*patterns], tqdm_class=bar, max_workers=1)
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


def _check_space(name: str, needed: int, cache: Path) -> None:
    """Raise DiskTooSmallError if the disk of the hub's cache has too little space."""
    if (free := free_space(cache)) < needed:
        raise DiskTooSmallError(
            f"The weights of {name!r} need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free in {cache}; "
            "free some, or set HF_HOME to a folder on another disk."
        )


def _bar(stage: str, total: int, report: Progress) -> type[Any]:
    """Return a class of progress bars that print nothing. The bar for all files calls ``report``.

    Args:
        total: Bytes of all files.
        report: Called with the stage, the megabytes so far, and the total.
    """
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments: Any, name: str | None = None, **options: Any) -> None:
            quiet = options | {"file": StringIO(), "disable": False}
            super().__init__(*arguments, **quiet)  # type: ignore[no-untyped-call]
            self._reports = name == "huggingface_hub.snapshot_download"

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if self._reports:
                report(stage, min(int(self.n), total) // MEGABYTE, total // MEGABYTE)
            return shown

    return Bar


def find_on_hub(name: str, wanted: str, bundled: Sequence[str]) -> str:
    """Return the name if the hub or its local cache has the model; sends at most one HTTP request.

    Raises:
        ValueError: There is no such model, access to it is denied, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if cached_file(name, "config.json") is not None:
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
