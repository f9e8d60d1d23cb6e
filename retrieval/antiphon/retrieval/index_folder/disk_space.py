"""Check the free disk space before an index is written, and raise a clear error if the disk becomes full."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from antiphon.accel.files import free_space, is_disk_full

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
