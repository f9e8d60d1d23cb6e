"""A folder that is replaced as a whole: generations of files behind a pointer, with checksums.

Knows nothing of what the files hold. Wherever a writer is killed, the generation before it still loads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.retrieval.durable import disk_full_named, sync_folder, write_durably
from antiphon.retrieval.write_lock import HeldLock, file_mode, folder_mode, locked_for_writing

FORMAT = 3
_POINTER = "CURRENT"
_MANIFEST = "manifest.json"
_GENERATION = re.compile(r"gen-(\d{6,})")
_KEPT = 2  # whoever has the last one open may go on reading while a new one is written


class IndexNotFound(FileNotFoundError):  # noqa: N818
    """There is no index in the folder."""


class IndexCorrupt(ValueError):  # noqa: N818
    """A file of the index is missing, torn or changed; the message names it."""


class IndexMismatch(ValueError):  # noqa: N818
    """The index was made by another format or another embedder; the message names both."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A folder of files that agree with their checksums, and the facts that were written with them."""

    folder: Path
    facts: Mapping[str, Any]


def write_generation(
    folder: Path,
    write: Callable[[Path], None],
    facts: Mapping[str, Any],
    *,
    after: str | None = None,
    held: HeldLock | None = None,
) -> Path:
    """Make what ``write`` puts into the folder it is given the current generation, all of it or nothing.

    ``after`` names the generation that it was made of, if it was: it must be the current one still. ``held`` is the
    lock of a caller that has it already. Files and folders get the permissions of ``folder``; one that is made here is
    for its owner alone.

    Raises:
        ValueError: the folder holds other things than an index.
        BlockingIOError: another process is writing to it, or has written to it since.
        OSError: there is no room for it.
    """
    require_index_folder(folder)
    with contextlib.nullcontext() if held else locked_for_writing(folder), disk_full_named(folder):
        if after is not None and _named(folder) != after:
            raise BlockingIOError(f"Another process has changed the index in {folder} meanwhile; try again.")
        _clear(folder)
        with _beside(folder) as beside:
            write(beside)
            digest = _write_manifest(beside, facts, file_mode(folder))
            beside.chmod(folder_mode(folder))
            sync_folder(beside)
            generation = folder / f"gen-{_last(folder) + 1:06d}"
            beside.rename(generation)
        sync_folder(folder)
        _point(folder, generation, digest)
        _clear(folder)
    return generation


def read_generation(folder: Path) -> Generation:
    """The current generation, every byte of it checked.

    Raises:
        IndexNotFound: there is no folder, or no index in it.
        IndexCorrupt: a file is missing, or differs from its checksum.
        IndexMismatch: the format is one that this version does not read.
    """
    if not (folder / _POINTER).is_file():
        raise IndexNotFound(f"{folder} holds no index; make one: antiphon index PATH... --out {folder}")
    match = re.fullmatch(rb"(gen-\d{6,}) ([0-9a-f]{64})\n", (folder / _POINTER).read_bytes())
    if not match:
        raise _corrupt(folder, folder / _POINTER, "is not a pointer to a generation")
    generation = folder / match[1].decode()
    manifest = _read_manifest(folder, generation / _MANIFEST, match[2].decode())
    for name, recorded in manifest["files"].items():
        _check(folder, generation / name, recorded["bytes"], recorded["sha256"])
    return Generation(generation, manifest["facts"])


def require_index_folder(folder: Path) -> None:
    """Refuse a path where an index cannot be written without touching what is somebody else's.

    Raises:
        ValueError: it is a file, or a folder that holds other things than an index.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; an index needs a folder of its own.")
    foreign = sorted(path.name for path in folder.glob("*") if not _is_ours(path.name)) if folder.exists() else []
    if foreign:
        raise ValueError(f"{folder} holds {foreign[0]}, which is no part of an index; give a new or an empty folder.")


def _is_ours(name: str) -> bool:
    return name == _POINTER or name.startswith(".") or bool(_GENERATION.fullmatch(name))


def _write_manifest(folder: Path, facts: Mapping[str, Any], mode: int) -> str:
    """The manifest of what is in the folder, files given their permissions; returns its checksum."""
    files = {path.name: _size_and_checksum(path) for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "facts": dict(facts), "files": files}
    content = (json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    write_durably(folder / _MANIFEST, content)
    for path in folder.iterdir():
        path.chmod(mode)
    return hashlib.sha256(content).hexdigest()


def _size_and_checksum(path: Path) -> dict[str, Any]:
    with path.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": digest}


def _read_manifest(folder: Path, path: Path, digest: str) -> dict[str, Any]:
    if not path.is_file():
        raise _corrupt(folder, path, "is missing")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise _corrupt(folder, path, "differs from its checksum")
    manifest: dict[str, Any] = json.loads(content)
    if manifest["format"] != FORMAT:
        raise IndexMismatch(f"{folder} has format {manifest['format']}; this version reads format {FORMAT}.")
    return manifest


def _check(folder: Path, path: Path, size: int, sha256: str) -> None:
    if not path.is_file():
        raise _corrupt(folder, path, "is missing")
    if path.stat().st_size != size:
        raise _corrupt(folder, path, f"has {path.stat().st_size} bytes instead of {size}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise _corrupt(folder, path, "differs from its checksum")


def _corrupt(folder: Path, path: Path, problem: str) -> IndexCorrupt:
    return IndexCorrupt(f"The index is damaged: {path} {problem}. Make it again: antiphon index PATH... --out {folder}")


def _last(folder: Path) -> int:
    return max((int(match[1]) for path in folder.iterdir() if (match := _GENERATION.fullmatch(path.name))), default=0)


def _named(folder: Path) -> str:
    """The name of the current generation; empty if there is none."""
    pointer = folder / _POINTER
    return pointer.read_bytes().split(b" ")[0].decode("ascii", "replace") if pointer.is_file() else ""


def _clear(folder: Path) -> None:
    """Remove what killed writers left behind, and all generations but the current one and the one before it."""
    generations = sorted(path for path in folder.iterdir() if _GENERATION.fullmatch(path.name))
    named = _named(folder)
    names = [path.name for path in generations]
    stale: list[Path] = []
    if named in names:  # else nothing is known to be stale
        here = names.index(named)
        stale = generations[: max(0, here + 1 - _KEPT)] + generations[here + 1 :]
    for path in [*folder.glob(".tmp-*"), *stale]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _point(folder: Path, generation: Path, digest: str) -> None:
    """Replace the pointer: before this the old generation is current, after it the new one."""
    beside = folder / f".tmp-{_POINTER}"
    try:
        write_durably(beside, f"{generation.name} {digest}\n".encode())
        beside.chmod(file_mode(folder))
        beside.replace(folder / _POINTER)
    except BaseException:  # what nothing points to would only take room
        shutil.rmtree(generation, ignore_errors=True)
        beside.unlink(missing_ok=True)
        raise
    sync_folder(folder)


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A new folder to write into; removed again unless it was renamed by then."""
    beside = folder / f".tmp-{uuid.uuid4().hex}"
    beside.mkdir(mode=0o700)
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)
