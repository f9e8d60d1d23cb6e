"""Lock an index folder for one writer at a time; make new folders private; explain a full disk.

A backup holds the locks `LOCK` and `UPLOADS_LOCK` with ``flock(1)`` while it copies; see docs/operations.md.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from antiphon.accel.files import free_space, is_disk_full

POINTER = "CURRENT"
"""The name of the file that names the current generation."""

GENERATION = re.compile(r"gen-(\d{6,})")
"""Matches the name of a generation's folder."""

LOCK = ".lock"
"""The name of the file that a writer locks."""

UPLOADS_LOCK = ".uploads.lock"
"""The name of the file that is locked while the index and the folder of uploads are changed together."""

_PRIVATE = 0o700
_UPLOADS_SECONDS = 60


@contextlib.contextmanager
def lock_for_writing(folder: Path) -> Iterator[None]:
    """Lock a folder against other writers. If a process dies, the system releases its lock.

    A missing folder is created, readable by its owner only. If the new folder stays empty, it is
    removed again.

    Raises:
        ValueError: The path is a file, or a folder with unrelated files.
        BlockingIOError: Another process is writing to the folder.
        OSError: The folder or the lock cannot be created.
    """
    require_index_folder(folder)
    with contextlib.ExitStack() as stack:
        with explain_full_disk(folder):
            created = _create(folder)
            stack.enter_context(_held(folder / LOCK, 0, f"writing to the index in {folder}; wait until it is done."))
        try:
            yield
        finally:
            if [path.name for path in folder.iterdir()] == [LOCK]:
                with contextlib.suppress(OSError):
                    (folder / LOCK).unlink()
                    for path in created:  # that contain no other files
                        path.rmdir()


def lock_uploads(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of an index folder and its uploaded files; wait at most a minute for another process.

    Raises:
        BlockingIOError: Another process has held the lock for too long.
        OSError: The lock cannot be created.
    """
    return _held(folder / UPLOADS_LOCK, _UPLOADS_SECONDS, f"changing the documents of {folder}; try again.")


@contextlib.contextmanager
def _held(path: Path, seconds: float, activity: str) -> Iterator[None]:
    """Hold a lock. Wait at most ``seconds`` for another process.

    Raises:
        BlockingIOError: Another process still holds the lock; the message has its ``activity``.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=seconds, mode=file_mode(path.parent), fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(f"Another process is {activity}") from error
    try:
        yield
    finally:
        lock.release()


def folder_mode(folder: Path) -> int:
    """Return the permissions of an index folder, which are also used for its subfolders."""
    return stat.S_IMODE(folder.stat().st_mode) & 0o777 | _PRIVATE


def file_mode(folder: Path) -> int:
    """Return the permissions for files in an index folder: the permissions of the folder, without execution."""
    return folder_mode(folder) & 0o666


def require_index_folder(folder: Path) -> None:
    """Raise an error if writing an index at a path would affect unrelated files.

    Raises:
        ValueError: The path is a file, or a folder with unrelated files.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; an index needs a folder of its own.")
    names = [path.name for path in folder.glob("[!.]*")] if folder.exists() else []
    foreign = sorted(name for name in names if name != POINTER and not GENERATION.fullmatch(name))
    if foreign:
        raise ValueError(f"{folder} holds {foreign[0]}, which is no part of an index; give a new or an empty folder.")


def _create(folder: Path) -> list[Path]:
    """Create a private folder, and its missing parents with default permissions.

    Returns the created folders, innermost first; `_remove` deletes them in this order.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=_PRIVATE, exist_ok=True)
    return missing


_SQLITE_DISK_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})


def require_free_space(folder: Path, needed: int) -> None:
    """Raise an error if the disk has too little space for the result. Callers check this before other work.

    Args:
        folder: The folder that will be written; it need not exist.
        needed: The size of the result, in bytes.

    Raises:
        OSError: Fewer than ``needed`` bytes are free.
    """
    if (free := free_space(folder)) < needed:
        raise OSError(
            f"The index needs at least {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free at {folder}. "
            "Nothing was written; make room, or give another folder."
        )


@contextlib.contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Convert errors of the system and of SQLite about a full disk to one clear error.

    Raises:
        OSError: The disk became full inside the ``with`` block.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not is_disk_full(error) and getattr(error, "sqlite_errorcode", 0) not in _SQLITE_DISK_FULL:
            raise
        raise OSError(
            f"There is no room for the index in {folder}: the disk is full, or a limit on files or space is reached. "
            "What was there is as it was; make room, or give another folder."
        ) from error
