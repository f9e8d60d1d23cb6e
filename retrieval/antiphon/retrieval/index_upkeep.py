"""Remove documents from an index, and update an index when files change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from antiphon.retrieval.document_changes import UPLOADED, is_below, real_path
from antiphon.retrieval.embedders.by_name import load_embedder
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.errors import DatabaseUnavailable
from antiphon.retrieval.folder_indexing import update_index
from antiphon.retrieval.formats.document_builder import listed
from antiphon.retrieval.indexing import IndexReport, build_index
from antiphon.retrieval.postgres.address import is_postgres
from antiphon.retrieval.postgres.index import PostgresIndex
from antiphon.retrieval.source_file import SourceFile, normalized_name
from antiphon.retrieval.stored import read_stored

_RETRY_SECONDS = 1.0

logger = logging.getLogger("antiphon.retrieval")


def remove_documents(
    location: str | Path, sources: Sequence[str | Path], *, embedder: Embedder | None = None, device: str | None = None
) -> tuple[str, ...]:
    """Remove documents from an index.

    Args:
        location: The index folder, or the address of a table of PostgreSQL.
        sources: Sources of documents, as `antiphon index --list` prints them, or folders of such sources. The files
            need not exist.
        embedder: The embedder that made the index. None: load the embedder by its name, if it is
            needed. A table of PostgreSQL needs no embedder.
        device: Where to load the embedder. None: a GPU if there is one.

    Returns:
        The sources of the removed documents.

    Raises:
        IndexNotFound: There is no index.
        ValueError: The index has no document for one of the sources; nothing is removed.
        BlockingIOError: Another process is writing to the folder.
        DatabaseUnavailable: The database server does not answer.
    """
    store = read_stored(location)
    known = store.documents()
    removed: dict[str, None] = {}
    for given in (normalized_name(str(source)) for source in sources):
        found = [given] if given in known else [name for name in known if _is_within(name, known[name][1], given)]
        if not found:
            raise ValueError(
                f"The index in {store.location} has no document {given!r}; it has {listed(list(known), 3)}."
            )
        removed |= dict.fromkeys(found)
    if isinstance(store, PostgresIndex):
        store.remove([passage.id for passage in store.passages_of([*removed])])
    else:
        ids = [identifier for source in removed for identifier in store.passages.ids_of(source)]
        update_index(store.folder, embedder or load_embedder(store.embedder, device), remove=ids)
    return tuple(removed)


def watch_index(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    embedder: str | Embedder = "auto",
    stop: threading.Event | None = None,
    **settings: Any,
) -> Iterator[IndexReport]:
    """Index files and folders whenever one of them changes.

    The index must exist, and keeps documents of other paths. Searches use the previous content
    until a change has been indexed. If a change cannot be indexed, a warning is logged and the
    previous index is kept. Only passages with new texts are embedded.

    Args:
        out: The index folder, which may be below ``paths``, or the address of a table of PostgreSQL.
        embedder: The embedder that made the index, or its name. auto: the name in the index.
        stop: Ends the iteration when it is set.
        **settings: Further arguments of `build_index`.

    Yields:
        A report for each change.

    Raises:
        IndexNotFound: There is no index.
    """
    from watchfiles import watch

    stop = stop or threading.Event()
    name = read_stored(out).embedder if embedder == "auto" else embedder
    model = load_embedder(name, settings.get("device")) if isinstance(name, str) else name
    settings |= {"add": True, "confirm": None, "embedder": model}
    inside = [] if is_postgres(out) else [real_path(out)]
    for changes in watch(*paths, stop_event=stop, raise_interrupt=True):
        if all(is_below(path, inside) for _, path in changes):
            continue
        report = _indexed_again(paths, out, stop, settings)
        if report is not None:
            yield report


def _indexed_again(
    paths: Sequence[str | Path], out: str | Path, stop: threading.Event, settings: dict[str, Any]
) -> IndexReport | None:
    """Index changed files. Wait while the database does not answer or another process writes to the index."""
    waits = False
    while not stop.is_set():
        try:
            return build_index(paths, out, **settings)
        except BlockingIOError:
            stop.wait(_RETRY_SECONDS)
        except DatabaseUnavailable as error:
            if not waits:
                logger.warning("the change is indexed later: %s", error)
            waits = True
            stop.wait(_RETRY_SECONDS)
        except (ValueError, OSError) as error:
            logger.warning("the change is not indexed: %s", error)
            return None
    return None


def _is_within(source: str, file: SourceFile | None, folder: str) -> bool:
    if source.startswith(UPLOADED) or folder.startswith(UPLOADED):
        return source.startswith(folder.rstrip("/") + "/")
    return is_below(source, [real_path(folder)], file)
