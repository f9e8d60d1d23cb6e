"""A folder that is complete or absent: written beside, given a manifest of sha256s, and renamed into place.

Knows nothing of what the files mean.
"""

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


class SealError(OSError):
    """A sealed folder lacks a file, or a file is not what was sealed; the message names it."""


def sealed(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder as it was sealed; made anew by ``write`` if it is not there or not whole."""
    try:
        check_sealed(folder)
    except SealError:
        write_sealed(folder, write)
    return folder


def write_sealed(folder: Path, write: Callable[[Path], None]) -> Path:
    """Make ``folder`` hold what ``write`` puts into the empty folder that it is given, all of it or nothing.

    The new files are flushed to disk and hashed before they take the place of whatever stood there. Of two processes
    that write the same folder at once, both succeed and the later one stays. What a killed process left behind is
    swept an hour later.

    Raises:
        OSError: there was no room for it; what stood there is as it was.
    """
    prefix = folder.name + _UNFINISHED
    remove_stale_folders(folder.parent, prefix, older_than=_STALE_SECONDS)
    try:
        with temporary_folder(folder.parent, prefix) as beside:
            write(beside)
            _seal(beside)
            _replace(folder, beside)
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise OSError(
            f"There is no room for {folder}: the disk is full, or a limit on files or space is reached. "
            "What stood there is as it was; make room, and ask again."
        ) from error
    return folder


def check_sealed(folder: Path) -> None:
    """Refuse a folder that is not as it was sealed.

    A file whose size and time of change are the sealed ones is taken as it is; any other is hashed.

    Raises:
        SealError: no manifest, an unreadable one, or a missing or changed file, by name.
    """
    for name, sealed in _manifest(folder).items():
        path = folder / name
        if not path.is_file():
            raise SealError(f"{path} is missing.")
        found = path.stat()
        if found.st_size != sealed["size"]:
            raise SealError(f"{path} has {found.st_size} bytes; {sealed['size']} were written.")
        if found.st_mtime_ns != sealed["mtime_ns"] and sha256(path) != sealed["sha256"]:
            raise SealError(f"{path} was changed after it was written (its sha256 differs).")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(folder: Path) -> dict[str, dict[str, int | str]]:
    path = folder / MANIFEST
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {str(name): dict(sealed) for name, sealed in files.items()}
    except FileNotFoundError:
        raise SealError(f"{path} is missing.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SealError(f"{path} is not a manifest.") from None


def _seal(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        sync_file(path)
        found = path.stat()
        files[path.name] = {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": sha256(path)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=2), encoding="utf-8")
    sync_file(manifest)


def _replace(folder: Path, new: Path) -> None:
    """Rename ``new`` to ``folder``; a folder in the way is set aside first, for a rename replaces only empty ones."""
    while True:
        try:
            new.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _set_aside(folder)
        else:
            return


def _set_aside(folder: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=folder.name + _UNFINISHED, dir=folder.parent))
    with suppress(FileNotFoundError):  # another process set it aside in this very moment
        folder.rename(aside / "old")
    shutil.rmtree(aside, ignore_errors=True)
