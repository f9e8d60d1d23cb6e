"""Indexes files and folders that are given with a question: once at first, then only what has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.files import expanded
from antiphon.pipelines.cli.index_location import find_index
from antiphon.pipelines.cli.index_report import index_documents, show_index, update_documents


def index_of(paths: Sequence[Path] | None, index: str | Path | None) -> str | Path:
    """Return the index to answer from. If ``paths`` are given, their new and changed files are indexed first.

    Args:
        paths: Files and folders; None or empty: the index is found as by `find_index`.
        index: The value of ``--index``.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: ``paths`` and ``index`` are both given, or no file can be read.
        IndexNotFound: Neither is given, and there is no default index.
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
