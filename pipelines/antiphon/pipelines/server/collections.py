"""Collections: the indexes of one server, each with a name, a pipeline and a folder of uploads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from antiphon.pipelines.rag import Rag
from antiphon.retrieval import LocalIndex, Reranker, Retriever, read_index
from antiphon.retrieval.embedders.protocol import TokenEmbedder
from antiphon.retrieval.index_folder.write_lock import lock_uploads
from antiphon.retrieval.local_index import embedder_of_index
from antiphon.retrieval.rerankers.by_name import load_reranker
from antiphon.retrieval.rerankers.maxsim import MaxSimReranker


@dataclass(frozen=True, slots=True)
class UploadQuota:
    """How much may be uploaded to a collection.

    Attributes:
        max_bytes: the bytes that all uploaded files together may have; None: any.
        max_documents: the number of uploaded documents, each file of an archive counted; None: any.
    """

    max_bytes: int | None = None
    max_documents: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """Documents that are answered from under one name.

    Attributes:
        name: the name for clients.
        rag: the pipeline that answers from the documents.
        uploads: the folder of uploaded files; None: the documents are read-only.
        quota: how much may be uploaded.
        lock: held while the documents are changed.
    """

    name: str
    rag: Rag
    uploads: Path | None = None
    quota: UploadQuota = UploadQuota()
    lock: Lock = field(default_factory=Lock)

    @property
    def retriever(self) -> Retriever | None:
        """The retriever of the pipeline, if it is a `Retriever`."""
        found = self.rag.retriever
        return found if isinstance(found, Retriever) else None

    @property
    def index(self) -> LocalIndex | None:
        """The index of the documents, if it is a local folder."""
        retriever = self.retriever
        return retriever.index if retriever is not None and isinstance(retriever.index, LocalIndex) else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of the documents: no other upload changes them, and no backup copies them meanwhile."""
        index = self.index
        with self.lock, nullcontext() if index is None else lock_uploads(index.folder):
            yield


def open_retrievers(folders: Mapping[str, Path], device: str | None = None) -> dict[str, Retriever]:
    """Open indexes; indexes of one embedder share it, and the model of the reranker.

    Args:
        folders: the folders of the indexes by the name of the collection.
        device: where models run; None: a GPU if there is one.

    Raises:
        ValueError: an index cannot be opened, or two collections have the same one.
    """
    opened: dict[str, Retriever] = {}
    places: dict[Path, str] = {}
    for name, folder in folders.items():
        if (other := places.setdefault(folder.resolve(), name)) != name:
            raise ValueError(f"The collections {other!r} and {name!r} have the same index, {folder}; each needs one.")
        try:
            opened[name] = _open(folder, device, opened.values())
        except (ValueError, OSError, ImportError) as error:
            raise ValueError(f"The collection {name!r} cannot be opened: {error}") from error
    return opened


def _open(folder: Path, device: str | None, others: Iterable[Retriever]) -> Retriever:
    store = read_index(folder)
    similar = next((each for each in others if each.embedder.fingerprint == store.fingerprint), None)
    embedder = embedder_of_index(store, similar.embedder if similar else None, device)
    index = LocalIndex(store, embedder)
    is_shared = similar is not None and not isinstance(similar.reranker, MaxSimReranker)
    reranker = load_reranker(
        similar.reranker if similar is not None and is_shared else "auto",
        embedder,
        token_counts=store.token_counts,
        passages=len(index),
        device=device,
    )
    return Retriever(index, embedder, reranker)


def independent_reranker(retriever: Retriever) -> Reranker | None:
    """Return a reranker like that of a retriever whose scores reveal nothing of the passages of its index.

    The scores of `MaxSimReranker` depend on how many passages contain a word.
    """
    if isinstance(retriever.reranker, MaxSimReranker) and isinstance(retriever.embedder, TokenEmbedder):
        return MaxSimReranker(retriever.embedder)
    return retriever.reranker
