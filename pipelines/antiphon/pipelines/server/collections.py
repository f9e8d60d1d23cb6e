"""Collections: the indexes of one server, each with a name, a pipeline and a folder of uploads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import cast

from antiphon.pipelines.rag import Rag
from antiphon.retrieval import LocalIndex, PostgresIndex, Reranker, Retriever, read_stored
from antiphon.retrieval.embedders.protocol import TokenEmbedder
from antiphon.retrieval.index_folder.write_lock import lock_uploads
from antiphon.retrieval.postgres.address import is_postgres, shown_location
from antiphon.retrieval.rerankers.maxsim import MaxSimReranker

DocumentIndex = LocalIndex | PostgresIndex
"""An index that lists its documents and finds a passage by its id."""


@dataclass(frozen=True, slots=True)
class UploadQuota:
    """The limits of the uploads to a collection.

    Attributes:
        max_bytes: maximum size of all uploaded files together; None: unlimited.
        max_documents: maximum number of uploaded documents, counting each file of an archive; None: unlimited.
    """

    max_bytes: int | None = None
    max_documents: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """A named set of documents, with the pipeline that answers from them.

    Attributes:
        rag: the pipeline; its `Retriever` searches a folder or a table of PostgreSQL.
        uploads: the folder of uploaded files; None: the documents are read-only.
        lock: held while the documents are changed.
    """

    name: str
    rag: Rag
    uploads: Path | None = None
    quota: UploadQuota = UploadQuota()
    lock: Lock = field(default_factory=Lock)

    @property
    def retriever(self) -> Retriever:
        """The retriever of the pipeline."""
        return cast(Retriever, self.rag.retriever)

    @property
    def index(self) -> DocumentIndex:
        """The index of the documents."""
        return cast(DocumentIndex, self.retriever.index)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of the documents, so that no other upload changes them and no backup copies them."""
        index = self.index
        with self.lock, lock_uploads(index.folder) if isinstance(index, LocalIndex) else nullcontext():
            yield


def open_retrievers(locations: Mapping[str, str | Path], device: str | None = None) -> dict[str, Retriever]:
    """Open indexes. Indexes with the same embedder share the models of embedder and reranker.

    Args:
        locations: the folders of the indexes, or the addresses of tables, by the name of the collection.
        device: where models run; None: a GPU if there is one.

    Raises:
        ValueError: an index cannot be opened, or two collections have the same index.
    """
    opened: dict[str, Retriever] = {}
    names: dict[str, str] = {}
    for name, location in locations.items():
        place = shown_location(location if is_postgres(location) else Path(location).resolve())
        if (other := names.setdefault(place, name)) != name:
            raise ValueError(f"The collections {other!r} and {name!r} have the same index, {place}; each needs one.")
        try:
            opened[name] = _open(location, device, opened.values())
        except (ValueError, OSError, ImportError) as error:
            raise ValueError(f"The collection {name!r} cannot be opened: {error}") from error
    return opened


def _open(location: str | Path, device: str | None, others: Iterable[Retriever]) -> Retriever:
    stored = read_stored(location)
    similar = next((retriever for retriever in others if retriever.embedder.fingerprint == stored.fingerprint), None)
    if similar is None:
        return Retriever.open(stored, device=device)
    is_shared = not isinstance(similar.reranker, MaxSimReranker)
    reranker = similar.reranker if is_shared else "auto"
    return Retriever.open(stored, embedder=similar.embedder, reranker=reranker, device=device)


def independent_reranker(retriever: Retriever) -> Reranker | None:
    """Return a reranker of the retriever's kind whose scores do not depend on the passages of the index.

    By default, the scores of `MaxSimReranker` depend on how many passages contain a word.
    """
    if isinstance(retriever.reranker, MaxSimReranker) and isinstance(retriever.embedder, TokenEmbedder):
        return MaxSimReranker(retriever.embedder)
    return retriever.reranker
