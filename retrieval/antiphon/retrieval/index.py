"""Files to an index: load, chunk, embed, save. What an earlier index already embedded is not embedded again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.chunk import MAX_TOKENS, chunk_document
from antiphon.retrieval.collection import last_of_each_id, require_same_embedder
from antiphon.retrieval.document import HALF_CHARACTER, Document
from antiphon.retrieval.durable import require_room
from antiphon.retrieval.embed import Embedder, TokenEmbedder
from antiphon.retrieval.embedders import resolve
from antiphon.retrieval.find import Skipped
from antiphon.retrieval.generation import IndexCorrupt, IndexMismatch, IndexNotFound, require_index_folder
from antiphon.retrieval.load import Progress, load_documents, required_files
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.settings import Setting
from antiphon.retrieval.store import Store, read_store, write_store
from antiphon.retrieval.vector_files import (
    checked_setting,
    description_of,
    index_of_normalized,
    rebuilt_index,
    saved_setting,
)
from antiphon.retrieval.vectors import Vectors, normalized
from antiphon.retrieval.write_lock import HeldLock, locked_for_writing

_BLOCK = 128  # passages between two calls of progress, unless an embedder has a `block` of its own


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What an index was made of. ``passages`` counts all, ``reused`` those whose vectors an earlier index had."""

    files: int
    passages: int
    reused: int
    words: int
    skipped: tuple[Skipped, ...]
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
    setting: str | Setting = "auto",
    follow_links: bool = False,
    progress: Progress | None = None,
) -> IndexReport:
    """Index files and folders into the folder ``out``; what is there stays as it is until the new index is whole.

    ``max_tokens`` (128 by default) is the longest passage, in the embedder's own tokens, so that none is cut off;
    ``overlap`` counts sentences. ``setting`` says how vectors are searched: auto, flat, compact, paper or a factory
    string of FAISS (see `choose`). Links in folders that lead out of ``paths`` are left out unless ``follow_links``. A
    new folder ``out`` is its owner's alone; in one that is there, files get its permissions. Stages of ``progress`` are
    ``load``, ``chunk``, ``embed`` and ``save``.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: nothing can be read, ``out`` is not a place for an index, the embedder is unknown, or a number is
            out of range.
        ImportError: a package that is needed is not installed; says the command.
        BlockingIOError: another process is writing to ``out``; said before anything is read or embedded.
        OSError: there is no room for the index.
    """
    began = time.perf_counter()
    out = Path(out)
    require_index_folder(out)
    report: Progress = progress or _silent
    required_files(
        paths, [out], follow_links=follow_links
    )  # a wrong path is said before a model is loaded, a wrong model before files are read
    model = resolve(embedder, device) if isinstance(embedder, str) else embedder
    limit = _limit(max_tokens, model)
    with locked_for_writing(out) as held:
        loaded = load_documents(paths, exclude=[out], follow_links=follow_links, progress=report)
        passages = _chunk(loaded.documents, model, limit, overlap, report)
        reused = _write_index(passages, out, model, None, setting, report, held)
    return IndexReport(
        files=len(loaded.documents),
        passages=len(passages),
        reused=reused,
        words=sum(len(document.text.split()) for document in loaded.documents),
        skipped=loaded.skipped,
        embedder=model.name,
        folder=out,
        seconds=time.perf_counter() - began,
    )


def index_passages(
    passages: Sequence[Passage],
    out: str | Path,
    embedder: Embedder,
    *,
    vectors: Vectors | None = None,
    setting: str | Setting = "auto",
    progress: Progress | None = None,
) -> int:
    """Index passages into the folder ``out``; returns how many of them were embedded by the index that was there.

    ``vectors``, of shape (passages, dim), are those of the embedder where they are known already.

    Raises:
        ValueError: there is no passage, two have one id, a vector is not a number or zero, there is no such setting,
            or there are too few passages for it.
        ImportError: the setting, or so many passages, need FAISS, which is not installed; says the command.
        BlockingIOError: another process is writing to ``out``; said before anything is read or embedded.
        OSError: there is no room for the index.
    """
    out = Path(out)
    require_index_folder(out)
    with locked_for_writing(out) as held:
        return _write_index(passages, out, embedder, vectors, setting, progress or _silent, held)


def _write_index(
    passages: Sequence[Passage],
    out: Path,
    embedder: Embedder,
    vectors: Vectors | None,
    setting: str | Setting,
    report: Progress,
    held: HeldLock,
) -> int:
    """Check, embed and save; returns how many passages an earlier index had embedded."""
    if not passages:
        raise ValueError("There is no passage to index.")
    identifier, times = Counter(passage.id for passage in passages).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{times} passages have the id {identifier}; each needs one of its own.")
    # What cannot be done is said before hours of embedding.
    _require_whole(passages)
    suited = checked_setting(setting, len(passages), embedder.dim)
    texts = [passage.text_with_headings for passage in passages]
    require_room(out, _least_bytes(texts, embedder.dim, suited))
    known = _known_vectors(out, embedder, set(texts)) if vectors is None else {}
    vectors = _embed(texts, embedder, known, report) if vectors is None else normalized(vectors, dim=embedder.dim)
    report("save", 0, 1)
    counts = _token_counts(texts, embedder) if isinstance(embedder, TokenEmbedder) else None
    index = index_of_normalized(vectors, suited)
    write_store(
        out,
        passages,
        index,
        description=description_of(index, suited),
        embedder=embedder.name,
        fingerprint=embedder.fingerprint,
        token_counts=counts,
        held=held,
    )
    report("save", 1, 1)
    return sum(text in known for text in texts)


def update_index(
    folder: str | Path,
    embedder: Embedder,
    *,
    put: Sequence[Passage] = (),
    vectors: Vectors | None = None,
    remove: Sequence[str] = (),
    progress: Progress | None = None,
) -> None:
    """Change the index in a folder, all of it or nothing: take passages out by id, put passages in.

    A passage whose id is there is replaced. ``vectors``, of shape (put, dim), are those of ``put``; without them its
    new texts are embedded. What a setting has learned is kept until there are so many passages that it would have
    more lists.

    Raises:
        IndexNotFound, IndexCorrupt: there is no index, or a damaged one.
        IndexMismatch: another embedder made it, or it counts tokens and the embedder has none, or this version of FAISS
            does not read it.
        ValueError: there are not as many vectors as passages, or one is zero or not a number, or there are too few to
            train the setting anew.
        ImportError: the setting, or so many passages, need FAISS, which is not installed; says the command.
        BlockingIOError: another process is writing to the folder, or has written to it meanwhile.
    """
    report: Progress = progress or _silent
    _require_whole(put)
    store = read_store(folder)
    require_same_embedder(f"The index in {folder}", store.fingerprint, embedder.fingerprint)
    _require_tokens(store, embedder)
    if vectors is None:
        texts = [passage.text_with_headings for passage in put]
        vectors = _embed(texts, embedder, _known(store, set(texts)), report)
    else:
        vectors = normalized(vectors, dim=embedder.dim)
    put, vectors = last_of_each_id(put, vectors)
    gone = {*remove, *(passage.id for passage in put)}
    before = list(store.passages)
    kept = [row for row, passage in enumerate(before) if passage.id not in gone]
    old = normalized(store.vectors[kept].astype(np.float32))
    report("save", 0, 1)
    suited = saved_setting(store.description, max(1, len(old) + len(vectors)))
    index = rebuilt_index(store.open_vectors(), np.concatenate([old, vectors]), suited)
    write_store(
        Path(folder),
        [*(before[row] for row in kept), *put],
        index,
        description=description_of(index, suited),
        embedder=store.embedder,
        fingerprint=store.fingerprint,
        token_counts=_recounted(store.token_counts, [p for p in before if p.id in gone], put, embedder),
        after=store,
        has_headings=store.has_headings,
    )
    report("save", 1, 1)


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that is reported to nobody."""


def _require_whole(passages: Sequence[Passage]) -> None:
    """Refuse what UTF-8 cannot hold, and so no file, before anything is embedded."""
    for passage in passages:
        facts = {"text": passage.text, "id": passage.id, "source": passage.source}
        facts |= {f"metadata {name!r}": f"{name}{value}" for name, value in passage.metadata.items()}
        broken = next((name for name, value in facts.items() if HALF_CHARACTER.search(value)), None)
        if broken:
            raise ValueError(
                f"The passage {passage.id!r} of {passage.source!r} holds half a character (a lone surrogate) in its "
                f"{broken}, which cannot be saved; replace it."
            )


def _least_bytes(texts: Sequence[str], dim: int, setting: Setting) -> int:
    """What an index of these texts takes on disk at least: its vectors and the texts themselves."""
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
    """Vectors of the wanted texts in the index that is there, if the same embedder made it."""
    try:
        store = read_store(out)
    except (IndexNotFound, IndexCorrupt, IndexMismatch):
        return {}  # there is nothing to reuse; what is there is about to be replaced
    return _known(store, wanted) if store.fingerprint == embedder.fingerprint else {}


def _known(store: Store, wanted: set[str]) -> dict[str, Vectors]:
    if not store.has_headings:
        return {}  # its vectors are of other texts
    read = ((row, passage.text_with_headings) for row, passage in enumerate(store.passages))
    texts = {row: text for row, text in read if text in wanted}
    vectors = normalized(store.vectors[list(texts)].astype(np.float32))
    return dict(zip(texts.values(), vectors, strict=True))


def _embed(texts: Sequence[str], embedder: Embedder, known: dict[str, Vectors], report: Progress) -> Vectors:
    """One normalized vector for each text; equal texts are embedded once, longest first, in batches of like length."""
    new = sorted({text for text in texts if text not in known}, key=lambda text: (-len(text), text))
    found = dict(known)
    size = getattr(embedder, "block", _BLOCK)
    for first in range(0, len(new), size):
        report("embed", first, len(new))
        block = new[first : first + size]
        found.update(zip(block, normalized(embedder.embed_documents(block), dim=embedder.dim), strict=True))
    report("embed", len(new), len(new))
    return np.stack([found[text] for text in texts]) if texts else np.empty((0, embedder.dim), np.float32)


def _token_counts(texts: Sequence[str], embedder: TokenEmbedder) -> NDArray[np.int64]:
    """In how many texts each token stands."""
    counts = np.zeros(embedder.vocabulary, np.int64)
    for first in range(0, len(texts), _BLOCK):
        for ids in embedder.token_ids(texts[first : first + _BLOCK]):
            counts[np.unique(ids)] += 1
    return counts


def _require_tokens(store: Store, embedder: Embedder) -> None:
    if store.token_counts is not None and not isinstance(embedder, TokenEmbedder):
        raise IndexMismatch(
            f"The index in {store.folder} counts tokens for late interaction, and {type(embedder).__name__} has none: "
            "the change would lose them. Give an embedder with token_ids, such as the one that made the index, or make "
            "the index again."
        )


def _recounted(
    counts: NDArray[np.int64] | None, gone: Sequence[Passage], put: Sequence[Passage], embedder: Embedder
) -> NDArray[np.int64] | None:
    """The token counts after a change, where there are any."""
    if counts is None or not isinstance(embedder, TokenEmbedder):
        return None
    lost, new = ([passage.text_with_headings for passage in passages] for passages in (gone, put))
    kept: NDArray[np.int64] = counts - _token_counts(lost, embedder)
    return np.maximum(kept, 0) + _token_counts(new, embedder)  # an index without headings had counted fewer
