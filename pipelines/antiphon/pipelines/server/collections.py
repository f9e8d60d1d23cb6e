"""Collections: the indexes of one server, each with a name, a pipeline and a folder of uploads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from antiphon.pipelines.rag import Rag
from antiphon.retrieval import LocalIndex, Retriever
from antiphon.retrieval.index_folder.snapshot import lock_uploads


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
