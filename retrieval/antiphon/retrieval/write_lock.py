"""The lock of an index folder: one writer at a time, and a folder that only its owner reads. Knows no files in it."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from antiphon.retrieval.durable import disk_full_named

LOCK = ".lock"
"""The name of the file that is locked."""

_PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class HeldLock:
    """Says that its holder is the only writer of ``folder``; made by `locked_for_writing` alone."""

    folder: Path


@contextlib.contextmanager
def locked_for_writing(folder: Path) -> Iterator[HeldLock]:
    """Make the folder if it is not there, and keep other writers out of it; the system frees a dead process's lock.

    A folder that is made here is its owner's alone. If nothing is written into it, folder and lock are removed again.

    Raises:
        BlockingIOError: another process is writing to it.
        OSError: the folder or the lock cannot be made.
    """
    from filelock import FileLock, Timeout

    with disk_full_named(folder):
        made = _make(folder)
        lock = FileLock(folder / LOCK, timeout=0, mode=file_mode(folder), fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise BlockingIOError(
                f"Another process is writing to the index in {folder}; wait until it is done."
            ) from error
    try:
        yield HeldLock(folder)
    finally:
        if [path.name for path in folder.iterdir()] == [LOCK]:
            _remove(made, folder / LOCK)
        lock.release()


def folder_mode(folder: Path) -> int:
    """The permissions of an index folder, which folders inside it share: whoever reads the one reads the other."""
    return stat.S_IMODE(folder.stat().st_mode) & 0o777 | _PRIVATE


def file_mode(folder: Path) -> int:
    """The permissions of files inside an index folder: those of the folder, without the right to execute."""
    return folder_mode(folder) & 0o666


def _make(folder: Path) -> list[Path]:
    """Make a private folder, and its parents as usual; returns those that were not there, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=_PRIVATE, exist_ok=True)
    return missing


def _remove(made: list[Path], lock: Path) -> None:
    """Remove the lock and the folders that were made for it, as far as nothing else came into them."""
    with contextlib.suppress(OSError):
        lock.unlink()
        for path in made:
            path.rmdir()
