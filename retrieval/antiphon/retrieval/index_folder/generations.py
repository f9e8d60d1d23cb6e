"""Generations of an index folder: every change writes a complete new subfolder and then replaces a pointer file.

Each generation has a manifest with checksums. If a writer is killed at any time, the previous generation stays valid.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.accel.files import TEMPORARY, sha256, sync_file, sync_folder, temporary_folder, write_file
from antiphon.retrieval.errors import IndexCorrupt, IndexMismatch, IndexNotFound
from antiphon.retrieval.index_folder.write_lock import GENERATION, POINTER, explain_full_disk, file_mode, folder_mode

FORMAT = 3
"""The version of the file format; increased by every incompatible change."""

MANIFEST = "manifest.json"
"""The name of the file with the checksums of a generation."""

_KEPT = 2  # generations to keep, so that readers of the previous one are not interrupted


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation whose files match their checksums."""

    folder: Path
    facts: Mapping[str, Any]


def write_generation(
    folder: Path,
    write: Callable[[Path], None],
    facts: Mapping[str, Any],
    *,
    after: str | None = None,
) -> Path:
    """Write a new generation and make it the current one, atomically.

    Args:
        folder: The index folder, which the caller has locked with `lock_for_writing`. Files and
            subfolders get the permissions of this folder.
        write: Function that writes the files into the given empty folder.
        after: The name of the generation from which the new one was derived; it must be current.

    Returns:
        The subfolder of the new generation.

    Raises:
        BlockingIOError: Another process has changed the folder since ``after``.
        OSError: The disk is full.
    """
    with explain_full_disk(folder):
        if after is not None and index_version(folder)[0] != after:
            raise BlockingIOError(f"Another process has changed the index in {folder} meanwhile; try again.")
        _remove_stale(folder)
        with temporary_folder(folder, TEMPORARY) as temporary:
            write(temporary)
            digest = _write_manifest(temporary, facts, file_mode(folder))
            temporary.chmod(folder_mode(folder))
            sync_folder(temporary)
            numbers = (int(match[1]) for path in folder.iterdir() if (match := GENERATION.fullmatch(path.name)))
            generation = folder / f"gen-{max(numbers, default=0) + 1:06d}"
            temporary.rename(generation)
        sync_folder(folder)
        _set_current(folder, generation, digest)
        _remove_stale(folder)
    return generation


def read_generation(folder: Path) -> Generation:
    """Return the current generation after checking every byte of it.

    Raises:
        IndexNotFound: The folder does not exist, or contains no index.
        IndexCorrupt: A file is missing, or differs from its checksum.
        IndexMismatch: This version cannot read the format.
    """
    if not (folder / POINTER).is_file():
        raise IndexNotFound(f"{folder} holds no index; make one: antiphon index PATH... --out {folder}")
    match = re.fullmatch(rb"(gen-\d{6,}) ([0-9a-f]{64})\n", (folder / POINTER).read_bytes())
    if not match:
        raise _corrupt(folder, folder / POINTER, "is not a pointer to a generation")
    generation = folder / match[1].decode()
    manifest = _read_manifest(folder, generation / MANIFEST, match[2].decode())
    for name, recorded in manifest["files"].items():
        _check(folder, generation / name, recorded["bytes"], recorded["sha256"])
    return Generation(generation, manifest["facts"])


def index_version(folder: Path) -> tuple[str, str]:
    """Return the name and the checksum of the current generation without verifying them; empty if there is none."""
    try:
        name, _, digest = (folder / POINTER).read_text("ascii", "replace").partition(" ")
    except OSError:
        return "", ""
    return name, digest


def _write_manifest(folder: Path, facts: Mapping[str, Any], mode: int) -> str:
    """Write the manifest of a folder, set the permissions of its files, and return the manifest's checksum."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()):
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        sync_file(path)
    manifest = {"format": FORMAT, "facts": dict(facts), "files": files}
    content = (json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    write_file(folder / MANIFEST, content)
    for path in folder.iterdir():
        path.chmod(mode)
    return hashlib.sha256(content).hexdigest()


def _read_manifest(folder: Path, path: Path, digest: str) -> dict[str, Any]:
    if not path.is_file():
        raise _corrupt(folder, path, "is missing")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise _corrupt(folder, path, "differs from its checksum")
    manifest: dict[str, Any] = json.loads(content)
    if manifest["format"] != FORMAT:
        raise IndexMismatch(_unreadable(folder, manifest["format"]))
    return manifest


def _unreadable(folder: Path, found: Any) -> str:
    """Return the error message for an index in a format that this version cannot read."""
    again = f"make the index again: antiphon index PATH... --out {folder}"
    is_newer = isinstance(found, int) and found > FORMAT
    advice = f"it was made by a newer version of Antiphon. Update Antiphon, or {again}" if is_newer else again
    return f"{folder} has format {found}; this version reads format {FORMAT}: {advice}"


def _check(folder: Path, path: Path, size: int, digest: str) -> None:
    if not path.is_file():
        raise _corrupt(folder, path, "is missing")
    if path.stat().st_size != size:
        raise _corrupt(folder, path, f"has {path.stat().st_size} bytes instead of {size}")
    if sha256(path) != digest:
        raise _corrupt(folder, path, "differs from its checksum")


def _corrupt(folder: Path, path: Path, problem: str) -> IndexCorrupt:
    return IndexCorrupt(f"The index is damaged: {path} {problem}. Make it again: antiphon index PATH... --out {folder}")


def _remove_stale(folder: Path) -> None:
    """Remove the files of killed writers, and all generations except the current and the previous one."""
    generations = sorted(path for path in folder.iterdir() if GENERATION.fullmatch(path.name))
    current, _ = index_version(folder)
    names = [path.name for path in generations]
    stale: list[Path] = []
    if current in names:  # without a valid pointer it is unknown which generations are stale
        here = names.index(current)
        stale = generations[: max(0, here + 1 - _KEPT)] + generations[here + 1 :]
    for path in [*folder.glob(f"{TEMPORARY}*"), *stale]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _set_current(folder: Path, generation: Path, digest: str) -> None:
    """Replace the pointer file atomically, so that the new generation becomes the current one."""
    try:
        write_file(folder / POINTER, f"{generation.name} {digest}\n".encode(), mode=file_mode(folder))
    except BaseException:  # nothing refers to this generation, so it is removed
        if index_version(folder)[0] != generation.name:
            shutil.rmtree(generation, ignore_errors=True)
        raise
