"""Find the folder of cached files; use a temporary folder if no home folder is writable."""

from __future__ import annotations

import os
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from platformdirs import user_cache_dir


def cache_folder() -> Path:
    """Return this project's folder in the user's cache.

    If it is not writable, warn once and return a temporary folder.
    """
    try:
        return _usable(user_cache_dir("antiphon"))
    except RuntimeError:  # HOME is not set, and the user has no home folder
        return _usable("~/.cache/antiphon")


@cache
def _usable(wanted: str) -> Path:
    folder = Path(wanted)
    with suppress(OSError):
        if folder.is_absolute():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK):
                return folder
    try:
        folder = _temporary()
    except OSError:  # no folder is writable, so cached content is made again each time
        warnings.warn(
            f"{wanted} cannot be written, and there is no temporary folder; set XDG_CACHE_HOME.", stacklevel=3
        )
        return folder
    warnings.warn(
        f"{wanted} cannot be written, so files are cached in {folder}; set XDG_CACHE_HOME to a folder that can be.",
        stacklevel=3,
    )
    return folder


def _temporary() -> Path:
    """Return this user's temporary folder. If other users own this folder or can write to it, return a new folder."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir(), f"antiphon-{user}")
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    is_own = folder.is_dir() and not folder.is_symlink() and (os.name == "nt" or facts.st_uid == user)
    return folder if is_own and not (os.name != "nt" and facts.st_mode & 0o022) else Path(tempfile.mkdtemp("-antiphon"))
