"""Back up an index with its uploaded files to one archive, and restore it, while a server uses the index.

An archive is a tar file, compressed with gzip if its name ends with .gz or .tgz. Its first member, the manifest, has
the size and the SHA-256 checksum of every other member; these are plain files of the folders ``index`` and ``uploads``.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from antiphon.accel.files import temporary_folder, write_file
from antiphon.retrieval.errors import IndexCorrupt, IndexMismatch, IndexNotFound
from antiphon.retrieval.index_folder.disk_space import explain_full_disk, require_free_space
from antiphon.retrieval.index_folder.generations import (
    MANIFEST,
    Generation,
    index_version,
    read_generation,
    require_index_folder,
    write_generation,
)
from antiphon.retrieval.index_folder.snapshot import (
    SNAPSHOT,
    UPLOAD_NAME,
    Snapshot,
    lock_uploads,
    take_snapshot,
    upload_files,
)
from antiphon.retrieval.index_folder.write_lock import WriteLock, file_mode, lock_for_writing

BACKUP_FORMAT = 1
"""The version of the archive's format; increased by every incompatible change."""

_MAX_MANIFEST = 64 * 2**20
_COMPRESSED = (".gz", ".tgz")
_MEMBER = re.compile(rf"index/CURRENT|index/gen-\d{{6,}}/\w[\w.-]*|uploads/{UPLOAD_NAME}")
"""Names of members: no absolute paths, no parent folders, no hidden files."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup contains.

    Attributes:
        created: The time of the backup, in ISO 8601.
        passages: The number of passages of the index.
        uploads: The number of uploaded files.
        bytes: The size of all files, uncompressed.
    """

    created: str
    passages: int
    uploads: int
    bytes: int


def backup_index(folder: str | Path, file: str | Path, *, uploads: str | Path | None = None) -> BackupReport:
    """Write an index and its uploaded files to an archive. Searches and uploads go on meanwhile.

    The archive is the state at one moment: no upload is in the index and missing in the folder of uploads.

    Args:
        folder: The index folder.
        file: The archive: a name that ends with .tar, .tar.gz or .tgz. An existing file is replaced at the end.
        uploads: The folder of uploaded files. None: the folder next to the index; it may be missing.

    Raises:
        IndexNotFound: The folder contains no index.
        IndexCorrupt: A file of the index is missing or damaged.
        IndexMismatch: This version cannot read the format of the index.
        ValueError: The file has another ending.
        OSError: The archive cannot be written.
    """
    folder, file = Path(folder), Path(file)
    if not file.name.endswith((".tar", *_COMPRESSED)):
        raise ValueError(f"The backup is called {file.name}; give a name that ends with .tar, .tar.gz or .tgz.")
    with take_snapshot(folder, uploads_of(folder, uploads)) as snapshot:
        files = _members(snapshot)
        entries = {name: _entry(path) for name, path in files.items()}
        manifest = {
            "format": BACKUP_FORMAT,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "passages": snapshot.generation.facts["passages"],
            "files": entries,
        }
        write_file(file, lambda out: _write_archive(out, file, manifest, files))
    return _report(manifest)


def restore_index(
    file: str | Path, folder: str | Path, *, uploads: str | Path | None = None, force: bool = False
) -> BackupReport:
    """Restore an index and its uploaded files from an archive, after checking all of it.

    A running server answers from the previous index until the restored one is complete. An interrupted restore leaves
    the previous index in use.

    Args:
        file: The archive, which `backup_index` wrote.
        folder: The index folder, which need not exist.
        uploads: The folder of uploaded files. None: the folder next to the index.
        force: Replace an existing index, and remove uploaded files that the archive does not contain.

    Raises:
        FileExistsError: There is an index or an uploaded file already, and ``force`` is False.
        IndexCorrupt: The archive is damaged, or contains other things than a backup.
        IndexMismatch: This version cannot read the format of the archive or of the index in it.
        ValueError: The folder contains other things than an index.
        BlockingIOError: Another process is writing to the folder.
        OSError: The archive cannot be read, or the disk is full.
    """
    file, folder = Path(file), Path(folder)
    stored = uploads_of(folder, uploads)
    require_index_folder(folder)
    if not force and (index_version(folder)[0] or upload_files(stored)):
        raise FileExistsError(
            f"{folder} holds an index already, or {stored} holds files; restore into a new folder, or give --force "
            "to replace both by the backup."
        )
    with _private_folder(folder), explain_full_disk(folder), ExitStack() as stack:
        index = stack.enter_context(temporary_folder(folder, SNAPSHOT))
        files = None
        with _open_archive(file) as archive:
            manifest = _read_manifest(file, archive)
            report = _report(manifest)
            require_free_space(folder, report.bytes)
            if report.uploads:
                stack.enter_context(_private_folder(stored))
                files = stack.enter_context(temporary_folder(stored, SNAPSHOT))
            _extract(file, archive, manifest, index, files)
        generation = _checked(index, file)
        with lock_uploads(folder), lock_for_writing(folder) as held:
            _replace(generation, files, stored, held)
    return report


def uploads_of(folder: Path, given: str | Path | None = None) -> Path:
    """Return the folder of uploaded files of an index.

    Args:
        folder: The index folder.
        given: The folder of uploads. None: the folder next to the index.
    """
    return folder.resolve().with_name(f"{folder.resolve().name}-uploads") if given is None else Path(given)


def _members(snapshot: Snapshot) -> dict[str, Path]:
    """Return the files of a snapshot by the names of their members."""
    folder = snapshot.generation.folder
    index = {f"index/{folder.name}/{path.name}": path for path in sorted(folder.iterdir())}
    return {"index/CURRENT": snapshot.pointer, **index} | {f"uploads/{n}": p for n, p in snapshot.uploads.items()}


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _write_archive(out: BinaryIO, file: Path, manifest: dict[str, Any], files: dict[str, Path]) -> None:
    # Level 1, because vectors hardly become smaller and a higher level takes several times as long.
    mode: dict[str, Any] = {"mode": "w:gz", "compresslevel": 1} if file.name.endswith(_COMPRESSED) else {"mode": "w"}
    with tarfile.open(fileobj=out, format=tarfile.PAX_FORMAT, **mode) as archive:
        content = json.dumps(manifest, indent=1, ensure_ascii=False).encode()
        archive.addfile(_header(MANIFEST, len(content)), io.BytesIO(content))
        for name, path in files.items():
            with path.open("rb") as source:
                archive.addfile(_header(name, manifest["files"][name]["bytes"]), source)


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = size, 0o600, int(time.time())
    return header


@contextmanager
def _open_archive(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(file, "r|*") as archive:
            yield archive
    except (IndexCorrupt, IndexMismatch):
        raise
    except (tarfile.TarError, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise _damaged(file, f"cannot be read ({error})") from error


def _read_manifest(file: Path, archive: tarfile.TarFile) -> dict[str, Any]:
    """Read the first member and check that it describes a backup with safe names."""
    member = archive.next()
    if member is None or member.name != MANIFEST or not member.isreg() or member.size > _MAX_MANIFEST:
        raise _damaged(file, "does not begin with a manifest")
    content = archive.extractfile(member)
    manifest = json.loads(content.read()) if content else None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise _damaged(file, "has a manifest of another program")
    if manifest["format"] > BACKUP_FORMAT:
        raise IndexMismatch(
            f"{file} is a backup of format {manifest['format']}, made by a newer version of Antiphon; this version "
            f"reads formats up to {BACKUP_FORMAT}. Update Antiphon, then restore it."
        )
    if not _is_complete(manifest):
        raise _damaged(file, "has a manifest of another program")
    unsafe = next((name for name in manifest["files"] if not _MEMBER.fullmatch(name)), None)
    if unsafe is not None:
        raise _damaged(file, f"names the file {unsafe!r}, which no backup has")
    return manifest


def _is_complete(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest has all fields with their types, and no negative sizes."""
    types = {"created": str, "passages": int, "files": dict}
    return all(isinstance(manifest.get(name), kind) for name, kind in types.items()) and all(
        isinstance(each, dict)
        and isinstance(each.get("bytes"), int)
        and each["bytes"] >= 0
        and isinstance(each.get("sha256"), str)
        for each in manifest["files"].values()
    )


def _extract(file: Path, archive: tarfile.TarFile, manifest: dict[str, Any], index: Path, uploads: Path | None) -> None:
    """Write the members to two folders; each must be a plain file of the size and checksum in the manifest."""
    missing = dict(manifest["files"])
    while (member := archive.next()) is not None:
        entry = missing.pop(member.name, None)
        if entry is None or not member.isreg() or member.size != entry["bytes"]:
            raise _damaged(file, f"has the member {member.name!r}, which its manifest does not describe")
        kind, _, name = member.name.partition("/")
        target = (index if kind == "index" or uploads is None else uploads) / name
        target.parent.mkdir(mode=0o700, exist_ok=True)
        source = archive.extractfile(member)
        if source is None or _copy(source, target) != entry["sha256"]:
            raise _damaged(file, f"has the member {member.name!r}, which differs from its checksum")
    if missing:
        raise _damaged(file, f"lacks {next(iter(missing))!r}")


def _copy(source: IO[bytes], target: Path) -> str:
    """Copy a file and return its checksum."""
    digest = hashlib.sha256()
    with target.open("xb") as out:
        while piece := source.read(2**20):
            digest.update(piece)
            out.write(piece)
    return digest.hexdigest()


def _checked(index: Path, file: Path) -> Generation:
    """Return the extracted index after checking it; errors name the archive."""
    try:
        return read_generation(index)
    except (IndexCorrupt, IndexMismatch, IndexNotFound) as error:
        raise type(error)(str(error).replace(str(index), f"the index in {file}")) from error


def _replace(generation: Generation, files: Path | None, uploads: Path, held: WriteLock) -> None:
    """Move uploaded files to their places, make the index the current one, and remove the other uploaded files."""
    restored = [] if files is None else upload_files(files)
    for path in restored:
        path.chmod(file_mode(held.folder))
        path.replace(uploads / path.name)

    def move(target: Path) -> None:
        for path in list(generation.folder.iterdir()):
            if path.name != MANIFEST:  # a new one is written
                path.replace(target / path.name)

    write_generation(held.folder, move, generation.facts, held=held)
    kept = {path.name for path in restored}
    for path in upload_files(uploads):
        if path.name not in kept:
            path.unlink()


@contextmanager
def _private_folder(folder: Path) -> Iterator[None]:
    """Create a folder that only its owner can read; remove it again if it was created and the block fails."""
    created = not folder.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield
    except BaseException:
        if created and not index_version(folder)[0]:
            for path in folder.iterdir():
                path.unlink(missing_ok=True)
            folder.rmdir()
        raise


def _damaged(file: Path, problem: str) -> IndexCorrupt:
    return IndexCorrupt(f"{file} is no intact backup: it {problem}. Nothing was changed; use another backup.")


def _report(manifest: dict[str, Any]) -> BackupReport:
    entries = manifest["files"]
    return BackupReport(
        created=manifest["created"],
        passages=manifest["passages"],
        uploads=sum(name.startswith("uploads/") for name in entries),
        bytes=sum(entry["bytes"] for entry in entries.values()),
    )
