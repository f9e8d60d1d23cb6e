"""Files that are whole on the disk, or an error that says why not. Knows nothing of what they hold."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

_NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
_SQLITE_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})
_BLOCK = 65_536


def write_durably(path: Path, content: bytes) -> None:
    """Write a file, and return when it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put a file, its owner's alone, in the place of another: whoever reads meanwhile has the one or the other."""
    beside = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        write_durably(beside, content)
        beside.chmod(0o600)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames inside the folder survive a loss of power, where the system lets a folder be opened."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_array(path: Path, array: NDArray[np.generic], dtype: DTypeLike) -> None:
    """Write an array as ``.npy``, converted to ``dtype`` block by block: as a whole it would be a second copy.

    Unlike `numpy.save`, a full disk is an ``OSError`` with its errno.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": array.shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, len(array), _BLOCK):
            file.write(array[first : first + _BLOCK].astype(kind).tobytes())


def require_room(folder: Path, needed: int) -> None:
    """Refuse to begin what cannot be written in the end.

    Raises:
        OSError: fewer than ``needed`` bytes are free where the folder is, or will be.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise OSError(
            f"The index needs at least {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free at {folder}. "
            "Nothing was written; make room, or give another folder."
        )


@contextlib.contextmanager
def disk_full_named(folder: Path) -> Iterator[None]:
    """Turn what a full disk raises, from the system or from SQLite, into one sentence.

    Raises:
        OSError: there was no room for what was written inside.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not _is_no_room(error):
            raise
        raise OSError(
            f"There is no room for the index in {folder}: the disk is full, or a limit on files or space is reached. "
            "What was there is as it was; make room, or give another folder."
        ) from error


def _is_no_room(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    return getattr(error, "sqlite_errorcode", 0) in _SQLITE_NO_ROOM
