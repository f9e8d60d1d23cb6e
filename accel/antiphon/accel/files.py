"""Write files and folders atomically: a reader sees the old or the new content, never a part of it.

All other modules write through this one. It only imports the standard library. `verified_folder` makes a folder of
files once, and again if one of them has changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

Content = bytes | Callable[[BinaryIO], object]
"""The content of a file: bytes, or a function that writes them to the open file it receives."""

PRIVATE = 0o600
"""The permissions of a file that only its owner can read."""

TEMPORARY = ".tmp-"
"""The prefix of a temporary file that `write_file` has not renamed yet."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
"""Error numbers of a full disk, a file size limit and an exhausted quota."""

_CANNOT_SYNC = frozenset({errno.EINVAL, getattr(errno, "ENOTSUP", errno.EINVAL)})


def write_file(path: Path, content: Content, *, mode: int | None = PRIVATE) -> None:
    """Write a file atomically and durably: to a temporary file in the same folder, fsync, rename, fsync the folder.

    Args:
        path: The file to create or replace. Missing folders are created.
        content: The bytes of the file, or a function that writes them.
        mode: The permissions of the file. If None, the umask decides.

    Raises:
        OSError: The file cannot be written. The old content, if any, is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{secrets.token_hex(6)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, 0o666 if mode is None else PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_cache_file(path: Path, content: Content) -> None:
    """Write a file with `write_file`, readable by its owner only. Errors are ignored, because a cache is optional."""
    with suppress(OSError):
        write_file(path, content)


def sync_file(path: Path) -> None:
    """Flush a file, for example one that another library has written, to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk (if the file system can), so that renames in it survive a power failure."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Create an empty folder that only its owner can read, and remove it on exit unless the caller has renamed it.

    Args:
        parent: The folder in which to create the new folder; it is created if missing. Renaming the
            new folder within ``parent`` stays on one file system.
        prefix: The start of the new folder's name; `remove_stale_folders` searches for it.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale_folders(parent: Path, prefix: str, *, older_than: float) -> None:
    """Remove the temporary folders that killed processes have left.

    Args:
        older_than: Minimum seconds since a folder's last change; a younger folder may still be in use.
    """
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # another process may have removed it
            if time.time() - folder.stat().st_mtime > older_than:
                shutil.rmtree(folder, ignore_errors=True)


def free_space(folder: Path) -> int:
    """Return the free bytes on a folder's disk. The folder need not exist."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that the disk is full, or that a quota or a file size limit is reached.

    Libraries written in Rust (safetensors, tokenizers) do not raise `OSError`, but the messages of
    their errors contain the system's error number.
    """
    if isinstance(error, OSError):
        return error.errno in DISK_FULL
    return any(f"(os error {number})" in str(error) for number in DISK_FULL)


def safetensors_header(path: Path) -> bytes:
    """Return the header of a safetensors file as JSON: type, shape and offsets of each tensor.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is shorter than its header.
    """
    with path.open("rb") as file:
        length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
        if not 0 < length <= size - 8:
            raise ValueError(f"{path} has {size} bytes and claims a header of {length}; it is no safetensors file.")
        return file.read(length)


MANIFEST = "manifest.json"
"""The file with the size, time and checksum of every other file in the folder."""

UNFINISHED = ".unfinished-"
"""The start of the names of temporary folders."""

_STALE_SECONDS = 3600.0


def verified_folder(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder; first write it if it is missing, incomplete or changed.

    The files are flushed to disk and hashed before the folder appears. If several processes write the same folder,
    one of them succeeds and the others use its folder. Temporary folders of killed processes are removed after an
    hour.

    Args:
        write: Function that writes the files into the given empty folder.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    if is_intact(folder):
        return folder
    remove_stale_folders(folder.parent, UNFINISHED, older_than=_STALE_SECONDS)
    try:
        with temporary_folder(folder.parent, UNFINISHED) as temporary:
            write(temporary)
            _write_manifest(temporary)
            _move(temporary, folder)
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise OSError(
            f"There is no room for {folder}: the disk is full, or a limit on files or space is reached; "
            "make room and try again."
        ) from error
    return folder


def is_intact(folder: Path) -> bool:
    """Return whether a folder still has all files unchanged.

    A file is only hashed if its modification time differs from the time in the manifest.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return all(_is_same(folder / name, **entry) for name, entry in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_same(path: Path, *, size: int, mtime_ns: int, digest: str) -> bool:
    found = path.stat()
    return found.st_size == size and (found.st_mtime_ns == mtime_ns or sha256(path) == digest)


def _write_manifest(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        sync_file(path)
        found = path.stat()
        files[path.name] = {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "digest": sha256(path)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=2), encoding="utf-8")
    sync_file(manifest)


def _move(temporary: Path, folder: Path) -> None:
    """Rename a complete folder into place, unless another process has already done so."""
    if not is_intact(folder):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            temporary.rename(folder)
        except OSError:  # another process was faster
            if not is_intact(folder):
                raise


def expanded(name: str | Path) -> Path:
    """Return a path with the home folder in place of ``~``; unchanged if the user has no home folder."""
    path = Path(name)
    try:
        return path.expanduser()
    except RuntimeError:
        return path
