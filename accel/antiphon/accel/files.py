"""Files that are written whole or not at all. Knows nothing of what stands in them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

Content = bytes | Callable[[BinaryIO], object]
"""What a file is to hold: bytes, or a function that writes them into the file that it is given."""


def write(path: Path, content: Content, *, is_needed: bool = False, is_private: bool = True) -> None:
    """Write the file whole or not at all: beside, flushed to the disk, and renamed into its place; folders are made.

    By default the file is a cache: one that cannot be written, or is full, is done without. With ``is_needed`` whoever
    asked is told. A file that is private can be read by its owner alone, any other by whom the umask lets.

    Raises:
        OSError: the file is needed and cannot be written.
    """
    if is_needed:
        _write(path, content, 0o600 if is_private else 0o666)
        return
    with suppress(OSError):
        _write(path, content, 0o600 if is_private else 0o666)


def _write(path: Path, content: Content, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
