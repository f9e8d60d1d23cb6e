"""A consistent copy of an index and its uploaded files, made of hard links while other processes search and write."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from antiphon.accel.files import remove_stale_folders, temporary_folder
from antiphon.retrieval.errors import IndexCorrupt, IndexMismatch
from antiphon.retrieval.index_folder.disk_space import explain_full_disk
from antiphon.retrieval.index_folder.generations import POINTER, Generation, index_version, read_generation
from antiphon.retrieval.index_folder.write_lock import file_mode

UPLOADS_LOCK = ".uploads.lock"
"""The file in the index folder that is locked while the index and the folder of uploads are changed together."""

SNAPSHOT = ".snapshot-"
"""The prefix of temporary folders; a writer of the index does not remove them."""

UPLOAD_NAME = r"\w[\w.-]*"
"""A regular expression of the names of uploaded files, which the server chooses; other files are not uploads."""

_LOCK_SECONDS = 60
_STALE_SECONDS = 24 * 3600
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of an index and its uploads at one moment.

    Attributes:
        generation: The generation of the index; its files are links in a temporary folder.
        pointer: The file that names the generation.
        uploads: Links to the uploaded files, by their names.
    """

    generation: Generation
    pointer: Path
    uploads: dict[str, Path]


@contextmanager
def lock_uploads(folder: Path) -> Iterator[None]:
    """Hold the lock of an index and its uploaded files; other processes and threads wait, at most a minute.

    Args:
        folder: The index folder.

    Raises:
        BlockingIOError: Another process has held the lock for too long.
        OSError: The lock cannot be created.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / UPLOADS_LOCK, timeout=_LOCK_SECONDS, mode=file_mode(folder), fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(f"Another process is changing the documents of {folder}; try again.") from error
    try:
        yield
    finally:
        lock.release()


def upload_files(uploads: Path | None) -> list[Path]:
    """Return the uploaded files in a folder, sorted by name, without hidden and other files; none without a folder."""
    if uploads is None or not uploads.is_dir():
        return []
    return sorted(path for path in uploads.iterdir() if re.fullmatch(UPLOAD_NAME, path.name) and path.is_file())


@contextmanager
def take_snapshot(folder: Path, uploads: Path | None) -> Iterator[Snapshot]:
    """Link the current generation of an index and its uploaded files into temporary folders, and check every byte.

    Args:
        folder: The index folder.
        uploads: The folder of uploaded files; it may be missing.

    Raises:
        IndexNotFound: The folder contains no index.
        IndexCorrupt: A file of the index is missing, or differs from its checksum.
        IndexMismatch: This version cannot read the format of the index.
        OSError: The links or, on file systems without them, the copies cannot be made.
    """
    with ExitStack() as stack, explain_full_disk(folder):
        if not index_version(folder)[0]:
            read_generation(folder)  # raises the error
        with lock_uploads(folder):
            copy = _copy_of_index(folder, stack)
            files = upload_files(uploads)
            linked: dict[str, Path] = {}
            if uploads is not None and files:
                target = _temporary(uploads, stack)
                linked = {path.name: _link(path, target) for path in files}
        try:
            generation = read_generation(copy)
        except (IndexCorrupt, IndexMismatch) as error:
            raise type(error)(str(error).replace(str(copy), str(folder))) from error
        yield Snapshot(generation, copy / POINTER, linked)


def _copy_of_index(folder: Path, stack: ExitStack) -> Path:
    """Return an index folder with links to the current generation; if a writer replaces it meanwhile, link again."""
    for _ in range(_ATTEMPTS):
        copy = _temporary(folder, stack)
        pointer = _link(folder / POINTER, copy)
        name = index_version(copy)[0]
        (copy / name).mkdir()
        with suppress(FileNotFoundError):
            for path in (folder / name).iterdir():
                _link(path, copy / name)
        if pointer.read_bytes() == (folder / POINTER).read_bytes():  # so no writer has removed its files
            return copy
    raise BlockingIOError(f"The index in {folder} changes too often to be copied; try again.")


def _temporary(parent: Path, stack: ExitStack) -> Path:
    remove_stale_folders(parent, SNAPSHOT, older_than=_STALE_SECONDS)
    return stack.enter_context(temporary_folder(parent, SNAPSHOT))


def _link(path: Path, folder: Path) -> Path:
    """Link a file into a folder, or copy it if the file system has no links."""
    target = folder / path.name
    try:
        target.hardlink_to(path)
    except FileNotFoundError:
        raise
    except OSError:  # no links on this file system, or not to files of another user
        shutil.copy2(path, target)
    return target
