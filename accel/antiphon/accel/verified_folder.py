"""Write folders that are complete or absent: a temporary folder is hashed and then renamed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from antiphon.accel.files import is_disk_full, remove_stale_folders, sync_file, temporary_folder

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
