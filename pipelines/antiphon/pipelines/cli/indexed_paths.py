"""Indexes the files and folders given with a question: built once, then kept up to date."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from antiphon.accel.cache_folder import cache_folder
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.index_location import find_index
from antiphon.pipelines.cli.index_report import index_documents, show_index
from antiphon.pipelines.rendering.sanitize import sanitize_line

Files = dict[str, tuple[int, int]]
"""Size in bytes and time of the last change in nanoseconds of each file, by its path."""


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
    from antiphon.retrieval import read_stored, remove_documents
    from antiphon.retrieval.file_discovery import find_files
    from antiphon.retrieval.index_folder.generations import index_version

    places = sorted({path.expanduser().resolve() for path in paths})
    key = hashlib.sha256("\0".join(map(str, places)).encode("utf-8", "surrogateescape")).hexdigest()
    folder = cache_folder() / "indexes" / key[:16]
    location, record = folder / places[0].name, folder / "files.json"
    now, before = _facts([file.path for file in find_files(places).files]), _recorded(record)
    if not index_version(location)[0]:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        show_index(index_documents(places, location))
    elif now != before:
        changed = [Path(path) for path in now if now[path] != before.get(path)]
        gone = [path for path in read_stored(location).sources() if path in before and path not in now]
        if changed:
            try:
                show_index(index_documents(changed, location, add=True))
            except ValueError as error:  # no changed file can be read; the others are in the index
                console.err.print(f"Not indexed: {sanitize_line(str(error))}", style="yellow", markup=False)
        if gone:
            remove_documents(location, gone)
    record.write_text(json.dumps(now), encoding="utf-8")
    return location


def _facts(files: Sequence[Path]) -> Files:
    found: Files = {}
    for file in files:
        with suppress(OSError):
            facts = file.stat()
            found[str(file)] = (facts.st_size, facts.st_mtime_ns)
    return found


def _recorded(record: Path) -> Files:
    with suppress(OSError, ValueError, AttributeError, TypeError):
        return {path: (int(size), int(time)) for path, (size, time) in json.loads(record.read_text("utf-8")).items()}
    return {}
