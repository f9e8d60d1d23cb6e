"""Build and update index folders: load, chunk, embed, save. Texts of the old index are not embedded again."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from antiphon.retrieval.chunk import MAX_TOKENS, chunk_document
from antiphon.retrieval.collection import keep_last_of_each_id, require_same_embedder
from antiphon.retrieval.document import LONE_SURROGATE, Document
from antiphon.retrieval.document_changes import Confirm, DocumentChange, plan_change
from antiphon.retrieval.embedders.by_name import load_embedder
from antiphon.retrieval.embedders.protocol import Embedder, TokenEmbedder
from antiphon.retrieval.embedding import embed_resumably, embed_texts
from antiphon.retrieval.encoder_runtime.hub import download_models
from antiphon.retrieval.errors import IndexCorrupt, IndexMismatch, IndexNotFound
from antiphon.retrieval.file_discovery import SkippedFile
from antiphon.retrieval.filters import json_metadata
from antiphon.retrieval.index_folder.disk_space import require_free_space
from antiphon.retrieval.index_folder.store import StoredIndex, read_index, write_index
from antiphon.retrieval.index_folder.unfinished import read_unfinished, remove_unfinished
from antiphon.retrieval.index_folder.write_lock import lock_for_writing
from antiphon.retrieval.load import LoadedDocuments, Progress, load_documents, require_files
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.rerankers.by_name import hub_models
from antiphon.retrieval.token_counts import recounted, require_token_embedder, token_counts
from antiphon.retrieval.vector_index.build import (
    build_from_normalized,
    check_setting,
    describe_index,
    rebuild_index,
    setting_of_saved_index,
)
from antiphon.retrieval.vector_index.flat import Vectors, normalized
from antiphon.retrieval.vector_index.settings import IndexSetting


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The result of `build_index`.

    Attributes:
        files: The number of files that were read.
        passages: The number of passages.
        reused: The number of passages whose vectors were reused from the old index.
        words: The number of words in the documents.
        skipped: The files that were not read, with reasons.
        warnings: What is missing or was guessed in files that were read.
        kept: The number of passages of other documents that stay in the index as they were.
        dropped: The sources of the documents that are no longer in the index.
        embedder: The name of the embedder.
        folder: The index folder.
        seconds: The time that it took.
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
    folder: Path
    seconds: float


def build_index(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    embedder: str | Embedder = "auto",
    device: str | None = None,
    max_tokens: int | None = None,
    overlap: int = 0,
    setting: str | IndexSetting = "auto",
    follow_links: bool = False,
    add: bool = False,
    confirm: Confirm | None = None,
    progress: Progress | None = None,
) -> IndexReport:
    """Index files and folders. An existing index is replaced atomically when the new one is complete.

    Documents that were uploaded to a server stay in the index.

    Args:
        paths: Files and folders.
        out: The index folder. A new one can be read by its owner only; in an existing one, files get its permissions.
        embedder: An embedder, or its name; see `load_embedder`.
        device: Where to load the embedder. None: a GPU if there is one.
        max_tokens: The longest passage, in tokens of the embedder. None: 128, or the embedder's limit if that is less.
        overlap: How many sentences a passage repeats from the one before it.
        setting: How vectors are searched: auto, flat, compact or a factory string of FAISS; see `choose_setting`.
        follow_links: Also follow symbolic links that lead out of ``paths``.
        add: Keep all documents of the index that are not below ``paths``. The default embedder is that of the index.
        confirm: Called before documents are dropped; if it returns False, nothing changes. None: drop them.
        progress: Called with the stages ``load``, ``chunk``, ``embed`` and ``save``, and before them with the megabytes
            of models that are downloaded.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: Nothing can be read, ``out`` contains other things, the embedder is unknown, or a number is out of
            range.
        WouldDropDocuments: ``confirm`` returned False.
        IndexMismatch: Documents are added to an index of another embedder.
        ImportError: A package is missing; the message has the command.
        BlockingIOError: Another process is writing to ``out``. Raised before anything is read or embedded.
        OSError: The disk is full.
    """
    start = time.perf_counter()
    out, report = Path(out), progress or _silent
    with lock_for_writing(out):
        # Report a wrong path before loading the model, and a wrong model before reading files.
        require_files(paths, [out], follow_links=follow_links)
        model = _model(embedder, device, out, add, progress)
        limit = _limit(max_tokens, model)
        loaded = load_documents(paths, exclude=[out], follow_links=follow_links, progress=report)
        sources = [document.source for document in loaded.documents]
        change = plan_change(_old_index(out, model, add), sources, paths, add=add, confirm=confirm)
        passages = _chunk(loaded.documents, model, limit, overlap, report)
        reused = _write_index([*change.kept, *passages], out, model, None, setting, report)
    new = max(0, reused - len(change.kept))
    return _report(loaded, change, passages=len(passages), reused=new, model=model, out=out, start=start)


def _report(
    loaded: LoadedDocuments,
    change: DocumentChange,
    *,
    passages: int,
    reused: int,
    model: Embedder,
    out: Path,
    start: float,
) -> IndexReport:
    return IndexReport(
        files=len(loaded.documents),
        passages=passages,
        reused=reused,
        words=sum(len(document.text.split()) for document in loaded.documents),
        skipped=loaded.skipped,
        warnings=loaded.warnings,
        kept=len(change.kept),
        dropped=change.dropped,
        embedder=model.name,
        folder=out,
        seconds=time.perf_counter() - start,
    )


def _model(embedder: str | Embedder, device: str | None, out: Path, add: bool, progress: Progress | None) -> Embedder:
    """Return the embedder; the default for an index that grows is the one that made it.

    With ``progress`` it is downloaded first, and so is the reranker that questions will need.
    """
    if add and embedder == "auto":
        with suppress(IndexNotFound):
            embedder = read_index(out).embedder
    if not isinstance(embedder, str):
        return embedder
    if progress is not None:
        download_models(hub_models(embedder, device), progress)
    return load_embedder(embedder, device)


def _old_index(out: Path, embedder: Embedder, add: bool) -> StoredIndex | None:
    """Return the index in a folder; None if there is none, or if it cannot be read and will be replaced."""
    try:
        store = read_index(out)
    except IndexNotFound:
        return None
    except (IndexCorrupt, IndexMismatch):
        if add:
            raise
        return None
    if add:
        require_same_embedder(f"The index in {out}", store.fingerprint, embedder.fingerprint)
    return store


def index_passages(
    passages: Sequence[Passage],
    out: str | Path,
    embedder: Embedder,
    *,
    vectors: Vectors | None = None,
    setting: str | IndexSetting = "auto",
) -> int:
    """Index passages. An existing index is replaced atomically when the new one is complete.

    Args:
        passages: The passages.
        out: The index folder.
        embedder: The embedder.
        vectors: The embedder's vectors of the passages, of shape (passages, dim), if they are known already.
        setting: How vectors are searched; see `choose_setting`.

    Returns:
        The number of passages whose vectors were reused from the old index.

    Raises:
        ValueError: There is no passage, two have the same id, a vector is zero or not finite, or the setting is unknown
            or needs more passages.
        ImportError: FAISS is needed and not installed; the message has the command.
        BlockingIOError: Another process is writing to ``out``. Raised before anything is embedded.
        OSError: The disk is full.
    """
    out = Path(out)
    with lock_for_writing(out):
        return _write_index(passages, out, embedder, vectors, setting, _silent)


def _write_index(
    passages: Sequence[Passage],
    out: Path,
    embedder: Embedder,
    vectors: Vectors | None,
    setting: str | IndexSetting,
    report: Progress,
) -> int:
    """Check, embed and save passages; return how many vectors were reused from the old index or interrupted run."""
    if not passages:
        raise ValueError("There is no passage to index.")
    identifier, times = Counter(passage.id for passage in passages).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{times} passages have the id {identifier}; each needs one of its own.")
    # All checks come before the embedding, which may take hours.
    _require_whole(passages)
    suited = check_setting(setting, len(passages), embedder.dim)
    texts = [passage.text_with_headings for passage in passages]
    require_free_space(out, _least_bytes(texts, embedder.dim, suited))
    known = _known_vectors(out, embedder, set(texts)) if vectors is None else {}
    if vectors is None:
        known |= read_unfinished(out, embedder.fingerprint, texts)
        vectors = embed_resumably(texts, embedder, known, report, out)
    else:
        vectors = normalized(vectors, dim=embedder.dim)
    report("save", 0, 1)
    counts = token_counts(texts, embedder) if isinstance(embedder, TokenEmbedder) else None
    index = build_from_normalized(vectors, suited)
    write_index(
        out,
        passages,
        index,
        description=describe_index(index, suited),
        embedder=embedder.name,
        fingerprint=embedder.fingerprint,
        token_counts=counts,
    )
    remove_unfinished(out)
    report("save", 1, 1)
    return sum(text in known for text in texts)


def update_index(
    folder: str | Path,
    embedder: Embedder,
    *,
    upsert: Sequence[Passage] = (),
    vectors: Vectors | None = None,
    remove: Sequence[str] = (),
) -> None:
    """Change the index in a folder atomically.

    A trained index is trained again only if it has grown so much that its setting would use more lists.

    Args:
        folder: The index folder.
        embedder: The embedder that made it.
        upsert: Passages to insert; a passage whose id exists is replaced.
        vectors: The vectors of ``upsert``, of shape (passages, dim). None: new texts are embedded.
        remove: The ids of passages to remove.

    Raises:
        IndexNotFound: The folder contains no index.
        IndexCorrupt: The index is damaged.
        IndexMismatch: Another embedder made the index, or the installed version of FAISS cannot read it.
        ValueError: The numbers of vectors and passages differ, a vector is zero or not finite, or there are too few
            passages to train the setting again.
        ImportError: FAISS is needed and not installed; the message has the command.
        BlockingIOError: Another process is writing to the folder, or has changed it meanwhile.
    """
    _require_whole(upsert)
    store = read_index(folder)
    require_same_embedder(f"The index in {folder}", store.fingerprint, embedder.fingerprint)
    require_token_embedder(store, embedder)
    if vectors is None:
        texts = [passage.text_with_headings for passage in upsert]
        vectors = embed_texts(texts, embedder, _known(store, set(texts)), _silent)
    else:
        vectors = normalized(vectors, dim=embedder.dim)
    upsert, vectors = keep_last_of_each_id(upsert, vectors)
    gone = {*remove, *(passage.id for passage in upsert)}
    before = list(store.passages)
    kept = [row for row, passage in enumerate(before) if passage.id not in gone]
    old = normalized(store.vectors[kept].astype(np.float32))
    suited = setting_of_saved_index(store.description, max(1, len(old) + len(vectors)))
    index = rebuild_index(store.open_vectors(), np.concatenate([old, vectors]), suited)
    counts = recounted(store.token_counts, [p for p in before if p.id in gone], upsert, embedder)
    with lock_for_writing(Path(folder)):
        write_index(
            Path(folder),
            [*(before[row] for row in kept), *upsert],
            index,
            description=describe_index(index, suited),
            embedder=store.embedder,
            fingerprint=store.fingerprint,
            token_counts=counts,
            after=store,
            has_headings=store.has_headings,
        )


def _silent(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


def _require_whole(passages: Sequence[Passage]) -> None:
    """Refuse passages that cannot be saved, before anything is embedded."""
    for passage in passages:
        facts = {"text": passage.text, "id": passage.id, "source": passage.source}
        facts |= {
            f"metadata {name!r}": json.dumps([name, value], ensure_ascii=False)
            for name, value in json_metadata(passage).items()
        }
        broken = next((name for name, value in facts.items() if LONE_SURROGATE.search(value)), None)
        if broken:
            raise ValueError(
                f"The passage {passage.id!r} of {passage.source!r} holds half a character (a lone surrogate) in its "
                f"{broken}, which cannot be saved; replace it."
            )


def _least_bytes(texts: Sequence[str], dim: int, setting: IndexSetting) -> int:
    """Return a lower bound of the size of the index on disk: the vectors and the texts."""
    return len(texts) * dim * (4 if setting.is_flat else 2) + sum(map(len, texts))


def _limit(max_tokens: int | None, embedder: Embedder) -> int:
    if max_tokens is not None and max_tokens > embedder.max_tokens:
        raise ValueError(
            f"max_tokens is {max_tokens}, but {embedder.name} reads {embedder.max_tokens} tokens and would cut off "
            "the rest."
        )
    return max_tokens if max_tokens is not None else min(MAX_TOKENS, embedder.max_tokens)


def _chunk(
    documents: Sequence[Document], embedder: Embedder, max_tokens: int, overlap: int, report: Progress
) -> list[Passage]:
    pieces: list[list[Passage]] = []
    for done, document in enumerate(documents):
        report("chunk", done, len(documents))
        pieces.append(chunk_document(document, embedder.count_tokens, max_tokens=max_tokens, overlap=overlap))
    report("chunk", len(documents), len(documents))
    return list(chain.from_iterable(pieces))


def _known_vectors(out: Path, embedder: Embedder, wanted: set[str]) -> dict[str, Vectors]:
    """Return the vectors of the wanted texts in the old index, if the same embedder made it."""
    try:
        store = read_index(out)
    except (IndexNotFound, IndexCorrupt, IndexMismatch):
        return {}  # no vectors can be reused; the old index will be replaced anyway
    return _known(store, wanted) if store.fingerprint == embedder.fingerprint else {}


def _known(store: StoredIndex, wanted: set[str]) -> dict[str, Vectors]:
    if not store.has_headings:
        return {}  # the old vectors were computed without headings
    read = ((row, passage.text_with_headings) for row, passage in enumerate(store.passages))
    texts = {row: text for row, text in read if text in wanted}
    vectors = normalized(store.vectors[list(texts)].astype(np.float32))
    return dict(zip(texts.values(), vectors, strict=True))
