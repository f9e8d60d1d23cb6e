"""Write index folders: embed passages, reuse the vectors of the old index, and save the new one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from antiphon.accel.progress import ignore_progress
from antiphon.retrieval.collection import (
    keep_last_of_each_id,
    require_distinct,
    require_embedder,
    require_savable,
)
from antiphon.retrieval.document_changes import StoredDocuments
from antiphon.retrieval.embedders.protocol import Embedder, TokenEmbedder
from antiphon.retrieval.embedders.ray_embedder import RayEmbedder
from antiphon.retrieval.embedding import embed_resumably, embed_texts
from antiphon.retrieval.errors import IndexCorrupt, IndexMismatch, IndexNotFound
from antiphon.retrieval.index_folder.store import StoredIndex, read_index, write_index
from antiphon.retrieval.index_folder.unfinished import read_unfinished, remove_unfinished
from antiphon.retrieval.index_folder.write_lock import lock_for_writing, require_free_space, require_index_folder
from antiphon.retrieval.load import Progress
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.token_counts import recounted, require_token_embedder, token_counts
from antiphon.retrieval.vector_index.build import (
    build_from_normalized,
    check_setting,
    describe_index,
    rebuild_index,
)
from antiphon.retrieval.vector_index.flat import Vectors, normalized
from antiphon.retrieval.vector_index.settings import choose_setting


class FolderTarget:
    """An index folder that `build_index` replaces.

    Args:
        setting: How vectors are searched; see `choose_setting`.
        add: Add documents to the index. The index must be readable, and the same embedder must have
            made it.

    Raises:
        ValueError: The folder contains unrelated files.
    """

    def __init__(self, folder: Path, setting: str, *, add: bool) -> None:
        require_index_folder(folder)
        self.location = str(folder)
        self.excluded = [folder]
        self._folder, self._setting, self._add = folder, setting, add
        self._old: StoredIndex | None = None

    def embedder(self) -> str | None:
        """Return the name of the embedder that must be used; None if any embedder can be used."""
        try:
            return read_index(self._folder).embedder if self._add else None
        except IndexNotFound:
            return None

    @contextmanager
    def opened(self, embedder: Embedder) -> Iterator[StoredDocuments]:
        """Lock the folder, and yield the documents in it."""
        with lock_for_writing(self._folder):
            self._old = _readable_index(self._folder, strict=self._add)
            if self._add and self._old is not None:
                require_embedder(self._folder, self._old.embedder, self._old.fingerprint, embedder)
            yield {} if self._old is None else self._old.documents()

    def write(self, passages: Sequence[Passage], kept: Collection[str], embedder: Embedder, report: Progress) -> int:
        """Replace the index; return the number of passages whose stored vectors were reused.

        Args:
            kept: The sources of the documents to keep unchanged; all other documents are dropped.
            report: Called with the stages ``embed`` and ``save``.
        """
        old = () if self._old is None else self._old.passages
        before = [passage for passage in old if passage.source in kept]
        written = [*before, *passages]
        reused = _write_index(written, self._folder, embedder, self._setting, report, self._old)
        return max(0, reused - len(before))


def index_passages(
    passages: Sequence[Passage],
    out: str | Path,
    embedder: Embedder,
    *,
    setting: str = "auto",
) -> int:
    """Index passages. An existing index is replaced atomically when the new one is complete.

    Args:
        setting: How vectors are searched; see `choose_setting`.

    Returns:
        The number of passages whose vectors were reused from the old index.

    Raises:
        ValueError: ``passages`` is empty, two passages have the same id, a vector is zero or not
            finite, or the setting is unknown or needs more passages.
        BlockingIOError: Another process is writing to ``out``. No text has been embedded yet.
        OSError: The disk is full.
    """
    out = Path(out)
    with lock_for_writing(out):
        return _write_index(passages, out, embedder, setting, ignore_progress, _readable_index(out))


def _write_index(
    passages: Sequence[Passage],
    out: Path,
    embedder: Embedder,
    setting: str,
    report: Progress,
    old: StoredIndex | None,
) -> int:
    """Check, embed and save passages; return the number of passages whose stored vectors were reused."""
    # All checks come before the embedding, which may take hours.
    require_distinct(passages)
    require_savable(passages)
    suited = check_setting(setting, len(passages), embedder.dim)
    texts = [passage.text_with_headings for passage in passages]
    vector_bytes = len(texts) * embedder.dim * (4 if suited.is_flat else 2)
    require_free_space(out, vector_bytes + sum(map(len, texts)))  # the index will not be smaller
    known: dict[str, Vectors] = {}
    if old is not None and old.fingerprint == embedder.fingerprint:
        known = _known(old, set(texts))
    known |= read_unfinished(out, embedder.fingerprint, texts)
    vectors = embed_resumably(texts, embedder, known, report, out)
    report("save", 0, 1)
    plain = embedder.plain if isinstance(embedder, RayEmbedder) else embedder
    counts = token_counts(texts, plain) if isinstance(plain, TokenEmbedder) else None
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

    A trained index is trained again only if the setting has more inverted lists for the new number
    of passages.

    Args:
        upsert: Passages to insert; a passage replaces an indexed passage with the same id.
        vectors: The vectors of ``upsert``, of shape (passages, dim). None: new texts are embedded.

    Raises:
        IndexNotFound: The folder contains no index.
        IndexCorrupt: The index is damaged.
        IndexMismatch: Another embedder made the index, or the installed FAISS cannot read it.
        ValueError: The numbers of vectors and passages differ, a vector is zero or not finite, or there are too few
            passages for training.
        BlockingIOError: Another process is writing to the folder, or has changed it during this call.
    """
    require_savable(upsert)
    store = read_index(folder)
    require_embedder(folder, store.embedder, store.fingerprint, embedder)
    require_token_embedder(store, embedder)
    if vectors is None:
        texts = [passage.text_with_headings for passage in upsert]
        vectors = embed_texts(texts, embedder, _known(store, set(texts)), ignore_progress)
    else:
        vectors = normalized(vectors, dim=embedder.dim)
    upsert, vectors = keep_last_of_each_id(upsert, vectors)
    gone = {*remove, *(passage.id for passage in upsert)}
    before = list(store.passages)
    kept = [row for row, passage in enumerate(before) if passage.id not in gone]
    old = normalized(store.vectors[kept].astype(np.float32))
    suited = choose_setting(store.description.setting, max(1, len(old) + len(vectors)), embedder.dim)
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
        )


def _readable_index(folder: Path, *, strict: bool = False) -> StoredIndex | None:
    """Return the index in a folder; None if the folder contains no index.

    An unreadable index raises an error if ``strict`` is set; otherwise the result is None.
    """
    try:
        return read_index(folder)
    except IndexNotFound:
        return None
    except (IndexCorrupt, IndexMismatch):
        if strict:
            raise
        return None  # it is replaced


def _known(store: StoredIndex, wanted: set[str]) -> dict[str, Vectors]:
    read = ((row, passage.text_with_headings) for row, passage in enumerate(store.passages))
    texts = {row: text for row, text in read if text in wanted}
    vectors = normalized(store.vectors[list(texts)].astype(np.float32))
    return dict(zip(texts.values(), vectors, strict=True))
