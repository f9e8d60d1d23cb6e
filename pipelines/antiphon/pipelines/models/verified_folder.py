"""Folders that are complete or absent: written to a temporary folder, hashed, and renamed into place."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from antiphon.accel.files import is_disk_full, remove_stale_folders, sync_file, temporary_folder

MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"
_STALE_SECONDS = 3600.0


class VerificationError(OSError):
    """A file of a verified folder is missing or was changed; the message names it."""


def verified_folder(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder; write it first if it is missing, incomplete or changed.

    Args:
        folder: The folder.
        write: Writes the files into the empty folder that it is given.
    """
    try:
        verify_folder(folder)
    except VerificationError:
        write_verified_folder(folder, write)
    return folder


def write_verified_folder(folder: Path, write: Callable[[Path], None]) -> Path:
    """Write a folder atomically and return it.

    The new files are flushed to disk and hashed before they replace the old ones. If two processes write the same
    folder at once, both succeed and the later one stays. Remains of a killed process are removed an hour later.

    Args:
        folder: The folder.
        write: Writes the files into the empty folder that it is given.

    Raises:
        OSError: the disk is full; the old files are unchanged.
    """
    prefix = folder.name + _UNFINISHED
    remove_stale_folders(folder.parent, prefix, older_than=_STALE_SECONDS)
    try:
        with temporary_folder(folder.parent, prefix) as temporary:
            write(temporary)
            _write_manifest(temporary)
            _replace(folder, temporary)
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise OSError(
            f"There is no room for {folder}: the disk is full, or a limit on files or space is reached. "
            "The old files are unchanged; make room and try again."
        ) from error
    return folder


def verify_folder(folder: Path) -> None:
    """Compare a folder with its manifest.

    A file is hashed only if its modification time differs from the manifest.

    Raises:
        VerificationError: the manifest is missing or unreadable, or a file is missing or changed.
    """
    for name, entry in _manifest(folder).items():
        path = folder / name
        if not path.is_file():
            raise VerificationError(f"{path} is missing.")
        found = path.stat()
        if found.st_size != entry["size"]:
            raise VerificationError(f"{path} has {found.st_size} bytes; {entry['size']} were written.")
        if found.st_mtime_ns != entry["mtime_ns"] and sha256(path) != entry["sha256"]:
            raise VerificationError(f"{path} was changed after it was written (its sha256 differs).")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(folder: Path) -> dict[str, dict[str, int | str]]:
    path = folder / MANIFEST
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {str(name): dict(entry) for name, entry in files.items()}
    except FileNotFoundError:
        raise VerificationError(f"{path} is missing.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise VerificationError(f"{path} is not a manifest.") from None


def _write_manifest(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        sync_file(path)
        found = path.stat()
        files[path.name] = {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": sha256(path)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=2), encoding="utf-8")
    sync_file(manifest)


def _replace(folder: Path, new: Path) -> None:
    """Rename ``new`` to ``folder``; move an existing folder away first, because renaming fails if it is not empty."""
    while True:
        try:
            new.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _move_away(folder)
        else:
            return


def _move_away(folder: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=folder.name + _UNFINISHED, dir=folder.parent))
    with suppress(FileNotFoundError):  # another process moved it away at the same time
        folder.rename(aside / "old")
    shutil.rmtree(aside, ignore_errors=True)
