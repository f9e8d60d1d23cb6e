"""Index documents into a folder or a table: load, chunk, embed, save.

Texts that are already in the index are not embedded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from antiphon.accel.progress import ignore_progress
from antiphon.retrieval.chunk import MAX_TOKENS, chunk_document
from antiphon.retrieval.document import Document
from antiphon.retrieval.document_changes import (
    Confirm,
    DocumentChange,
    StoredDocuments,
    is_below,
    plan_change,
    real_path,
)
from antiphon.retrieval.embedders.by_name import chosen_embedder, load_embedder
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.embedders.ray_embedder import RayEmbedder
from antiphon.retrieval.encoder_runtime.hub import download_models
from antiphon.retrieval.file_discovery import FoundFiles, Root, SkippedFile, find_files
from antiphon.retrieval.folder_indexing import FolderTarget
from antiphon.retrieval.index_folder.store import StoredIndex
from antiphon.retrieval.load import LoadedDocuments, Progress, load_found, nothing_readable, require_files
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.postgres.address import is_postgres
from antiphon.retrieval.postgres.indexing import PostgresTarget
from antiphon.retrieval.rerankers.by_name import hub_models
from antiphon.retrieval.stored import read_stored


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The result of `build_index`.

    Attributes:
        reused: The number of passages whose vectors were reused from the old index.
        skipped: The files that were not read, with reasons.
        warnings: Sentences about missing content and guesses in the files that were read.
        kept: The number of passages of other documents that the index keeps unchanged.
        dropped: The sources of the documents that are no longer in the index.
        location: The index folder, or the address of the table without user and password.
    """

    files: int
    passages: int
    reused: int
    words: int
    skipped: tuple[SkippedFile, ...]
    warnings: tuple[SkippedFile, ...]
    kept: int
    dropped: tuple[str, ...]
    embedder: str
    location: str
    seconds: float


def build_index(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    embedder: str | Embedder = "auto",
    device: str | None = None,
    max_tokens: int | None = None,
    setting: str = "auto",
    ray: str | None = None,
    follow_links: bool = False,
    add: bool = False,
    confirm: Confirm | None = None,
    progress: Progress | None = None,
) -> IndexReport:
    """Index files and folders. An existing index is replaced atomically when the new one is complete.

    Documents that were uploaded to a server stay in the index. Only passages with new texts are embedded.

    Args:
        paths: Files and folders.
        out: The index folder, or a table of PostgreSQL: ``postgresql://USER@HOST/DATABASE?table=NAME``. A new folder
            can only be read by its owner; files in an existing folder get its permissions.
        embedder: An embedder, or its name; see `load_embedder`. The default for an existing table is the embedder
            that made it; any other embedder is refused.
        device: Where to load the embedder. None: a GPU if there is one.
        max_tokens: Maximum tokens of a passage. None: 128, or the embedder's limit if that is less.
        setting: How vectors are searched: auto, flat or compact; see `choose_setting`.
            A table is searched by PostgreSQL, and has no setting.
        ray: Embed on a Ray cluster with this address; see `RayEmbedder`. The embedder must be given by its name.
        follow_links: Also follow symbolic links whose targets are outside of ``paths``.
        add: Keep documents that are not below ``paths``. The index's embedder becomes the default.
        confirm: Called before documents are dropped; if it returns False, nothing changes. None:
            documents are dropped without asking.
        progress: Called with the stages ``load``, ``chunk``, ``embed`` and ``save``. Before these
            stages, it is called with the megabytes of model downloads.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: No file can be read, ``out`` contains unrelated files, the embedder is unknown, or a number is out
            of range.
        WouldDropDocuments: ``confirm`` returned False.
        IndexMismatch: Another embedder made the table, or made the index to which documents are added.
        ImportError: A package is missing; the message has the command.
        BlockingIOError: Another process is writing to ``out``. No file has been read yet.
        ConnectionError: The Ray cluster cannot be reached.
        DatabaseUnavailable: The database server does not answer.
        DatabaseError: The database server refuses the change.
        OSError: The disk is full.
    """
    start = time.perf_counter()
    target = _target(out, setting, add)
    # Report a wrong path before loading the model, and a wrong model before reading files.
    found = require_files(paths, target.excluded, follow_links=follow_links)
    model = _model(embedder, device, target, ray, progress)
    report = progress or ignore_progress

    def read(before: StoredDocuments) -> tuple[LoadedDocuments, DocumentChange]:
        loaded = load_found(found, report)
        if not loaded.documents:
            raise ValueError(nothing_readable(paths, loaded.skipped))
        return loaded, plan_change(target.location, before, loaded.documents, paths, add=add, confirm=confirm)

    return _index(target, model, max_tokens, read, report, start)


def refresh_index(
    location: str | Path,
    *,
    embedder: Embedder | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> IndexReport:
    """Update an index: index new and changed files, and remove the documents of missing files.

    Files are searched below the paths that were indexed; the index stores these paths, so the
    working directory does not matter. Symbolic links are followed if they were followed before.
    Files with an unchanged size and time are not read. Uploaded documents are not changed.
    Documents that an older version has indexed, without storing their file, are not changed either.

    Args:
        location: The index folder, or the address of a table of PostgreSQL.
        embedder: The embedder that made the index. None: load it by its name.
        device: Where to load the embedder. None: a GPU if there is one.
        progress: As in `build_index`.

    Raises:
        IndexNotFound: There is no index.
        ValueError: The index does not store its files, or no document would be left in it.
        BlockingIOError: Another process is writing to the index.
        DatabaseUnavailable: The database server does not answer.
    """
    start, store = time.perf_counter(), read_stored(location)
    files = {file.path: file for _, file in store.documents().values() if file}
    if not files:
        raise ValueError(f"The index in {store.location} does not name its files; index their paths again.")
    setting = store.description.setting if isinstance(store, StoredIndex) else "auto"
    target = _target(location, setting, add=True)
    roots = [root for root in {Root(each.root, each.base): None for each in files.values()} if root.path.exists()]
    places = [real_path(root.path) for root in roots]
    linked = not all(is_below("", places, file) for file in files.values() if Path(file.path).exists())
    found = find_files(roots, target.excluded, follow_links=linked) if roots else FoundFiles((), ())
    new = tuple(each for each in found.files if (file := files.get(str(each.real))) is None or not file.is_current())
    gone = files.keys() - {str(each.real) for each in found.files}
    changed = [*gone, *(str(each.real) for each in new)]
    model = embedder or load_embedder(store.embedder, device)
    report = progress or ignore_progress

    def read(before: StoredDocuments) -> tuple[LoadedDocuments, DocumentChange]:
        loaded = load_found(replace(found, files=new), report)
        return loaded, plan_change(target.location, before, loaded.documents, changed, add=True)

    return _index(target, model, None, read, report, start)


def _index(
    target: FolderTarget | PostgresTarget,
    model: Embedder,
    max_tokens: int | None,
    read: Callable[[StoredDocuments], tuple[LoadedDocuments, DocumentChange]],
    report: Progress,
    start: float,
) -> IndexReport:
    """Read documents, and write the index if they differ from the documents in it."""
    limit = _limit(max_tokens, model)
    with target.opened(model) as before:
        loaded, change = read(before)
        passages = _chunk(change.documents, model, limit, report)
        reused = 0
        if passages or change.kept != before.keys():
            reused = target.write(passages, change.kept, model, report)
    return IndexReport(
        files=len(loaded.documents),
        passages=len(passages),
        reused=reused,
        words=sum(len(document.text.split()) for document in loaded.documents),
        skipped=loaded.skipped,
        warnings=loaded.warnings,
        kept=sum(before[source][0] for source in change.kept),
        dropped=change.dropped,
        embedder=model.name,
        location=target.location,
        seconds=time.perf_counter() - start,
    )


def _target(out: str | Path, setting: str, add: bool) -> FolderTarget | PostgresTarget:
    if not is_postgres(out):
        return FolderTarget(Path(out), setting, add=add)
    if setting != "auto":
        raise ValueError(f"The setting is {setting!r}; PostgreSQL searches a table by its own index, so leave it out.")
    return PostgresTarget(str(out))


def _model(
    embedder: str | Embedder,
    device: str | None,
    target: FolderTarget | PostgresTarget,
    ray: str | None,
    progress: Progress | None,
) -> Embedder:
    """Return the embedder. If documents are added to an index, the default is the index's embedder.

    With ``progress``, the embedder and the reranker for later questions are downloaded first.
    """
    if embedder == "auto":
        embedder = target.embedder() or embedder
    if not isinstance(embedder, str):
        if ray is not None:
            raise ValueError(f"ray is {ray!r}, and the embedder an object; give its name, which Ray's workers load.")
        return embedder
    if progress is not None:
        download_models(hub_models(embedder, device), progress)
    if ray is not None:
        return RayEmbedder(chosen_embedder(embedder, device), ray)
    return load_embedder(embedder, device)


def _limit(max_tokens: int | None, embedder: Embedder) -> int:
    if max_tokens is not None and max_tokens > embedder.max_tokens:
        raise ValueError(
            f"max_tokens is {max_tokens}, but {embedder.name} reads {embedder.max_tokens} tokens and would cut off "
            "the rest."
        )
    return max_tokens if max_tokens is not None else min(MAX_TOKENS, embedder.max_tokens)


def _chunk(documents: Sequence[Document], embedder: Embedder, max_tokens: int, report: Progress) -> list[Passage]:
    pieces: list[list[Passage]] = []
    for done, document in enumerate(documents):
        report("chunk", done, len(documents))
        pieces.append(chunk_document(document, embedder.count_tokens, max_tokens=max_tokens))
    report("chunk", len(documents), len(documents))
    return list(chain.from_iterable(pieces))
