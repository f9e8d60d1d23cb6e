"""Finds the index of a command: given paths, the value of `--index`, or the nearest ``.antiphon``.

An index of given paths is kept in the cache folder, and brought up to date when their files have changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.files import expanded
from antiphon.pipelines.cli.index_report import index_documents, show_index, update_documents
from antiphon.retrieval.postgres.address import is_postgres

DEFAULT_INDEX = Path(".antiphon")
"""The folder that `antiphon index` writes without `--out`; it is hidden, so it is not indexed itself."""


def nearest_index() -> Path | None:
    """Return the nearest folder ``.antiphon`` with an index, in the working directory or above it, or None."""
    from antiphon.retrieval.index_folder.generations import index_version

    here = Path.cwd()
    for folder in (DEFAULT_INDEX, *(above / DEFAULT_INDEX for above in here.parents)):
        if index_version(folder)[0]:
            return folder
    return None


def find_index(given: str | Path | None) -> str | Path:
    """Return the index to answer from: a folder, or the address of a table. Nothing is loaded.

    Args:
        given: The value of `--index`; None: the nearest default index.

    Raises:
        IndexNotFound: The given folder has no index, or there is no default index.
        ValueError: The given address is malformed.
    """
    from antiphon.retrieval.errors import IndexNotFound
    from antiphon.retrieval.index_folder.generations import index_version

    if given is None:
        found = nearest_index()
        if found is None:
            raise IndexNotFound(
                f"There is no index in {DEFAULT_INDEX} here or in a folder above; make one with antiphon index PATH, "
                "or give the folder of one with --index."
            )
        return found
    if is_postgres(given):
        return given
    if not index_version(Path(given))[0]:
        raise IndexNotFound(f"{given} holds no index; make one: antiphon index PATH... --out {given}")
    return Path(given)


def index_of(paths: Sequence[Path] | None, index: str | Path | None) -> str | Path:
    """Return the index to answer from. If ``paths`` are given, their new and changed files are indexed first.

    Args:
        paths: Files and folders. If None or empty, `find_index` finds the index.
        index: The value of ``--index``.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: ``paths`` and ``index`` are both given, or no file can be read.
        IndexNotFound: Neither ``paths`` nor ``index`` is given, and there is no default index.
    """
    if not paths:
        return find_index(index)
    if index is not None:
        raise ValueError("Files and --index are given; name the files, or an index that has them already.")
    from antiphon.retrieval.file_discovery import find_files
    from antiphon.retrieval.index_folder.generations import index_version

    places = sorted({expanded(path).resolve() for path in paths})
    key = hashlib.sha256("\0".join(map(str, places)).encode("utf-8", "surrogateescape")).hexdigest()
    folder = cache_folder() / "indexes" / key[:16]
    location, record = folder / places[0].name, folder / "files.json"
    now, before = _facts([file.path for file in find_files(places).files]), ""
    with suppress(OSError):
        before = record.read_text(encoding="utf-8")
    if not index_version(location)[0]:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        show_index(index_documents(places, location))
    elif now != before:
        try:
            show_index(update_documents(location))
        except ValueError:  # an earlier version made the index, or nothing would be left of it
            show_index(index_documents(places, location, yes=True))
    record.write_text(now, encoding="utf-8")
    return location


def _facts(files: Sequence[Path]) -> str:
    """Return, for each file, its size in bytes and the time of its last change in nanoseconds, as JSON."""
    found = {}
    for file in files:
        with suppress(OSError):
            facts = file.stat()
            found[str(file)] = facts.st_size, facts.st_mtime_ns
    return json.dumps(found)
