"""Documents and API keys of `antiphon serve`: from one index, from a file of collections, or no documents."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.index_location import DEFAULT_INDEX, nearest_index
from antiphon.pipelines.rendering.sanitize import sanitize_line
from antiphon.retrieval.postgres.address import PostgresAddress, is_postgres, shown_location

if TYPE_CHECKING:
    from antiphon.accel import TextModel
    from antiphon.pipelines.server.access_control import AccessKeys
    from antiphon.pipelines.server.collections import Collection, UploadQuota
    from antiphon.retrieval import Embedder, Reranker, Retriever

BOTH = "--index and --collections are given; name the index in the file of collections, or give --index alone."


@dataclass(slots=True)
class ServedDocuments:
    """The documents of a server, before its language model is loaded.

    Attributes:
        locations: the folders of the indexes, or the addresses of tables, by the name of the collection.
        is_shared: whether API keys may have different rights.
        read_only: the names of collections that clients may not change.
        quotas: upload limits, by the name of the collection.
        retrievers: the opened indexes by the name of the collection.
    """

    locations: dict[str, str | Path]
    keys: AccessKeys
    is_shared: bool = False
    read_only: set[str] = field(default_factory=set)
    quotas: dict[str, UploadQuota] = field(default_factory=dict)
    retrievers: dict[str, Retriever] = field(default_factory=dict)
    embedder: Embedder | None = None

    @property
    def status(self) -> str:
        """The text to show on the terminal while `open` runs."""
        shown = ", ".join(map(shown_location, self.locations.values()))
        return f"Opening {shown}" if shown else "Loading libraries"

    def open(self, embedder: str | None, device: str | None) -> None:
        """Open the indexes, and load the embedder of /v1/embeddings.

        Args:
            embedder: the embedder's name; None: the embedder of the first index.
            device: where models run; None: a GPU if there is one.

        Raises:
            ValueError: an index cannot be opened, or there is no such embedder.
        """
        from antiphon.pipelines.server.collections import open_retrievers
        from antiphon.retrieval import load_embedder

        self.embedder = load_embedder(embedder, device) if embedder else None
        self.retrievers = open_retrievers(self.locations, device)
        self.embedder = self.embedder or next((each.embedder for each in self.retrievers.values()), None)

    @property
    def reranker(self) -> Reranker | None:
        """The reranker of /v1/rerank.

        If API keys may have different rights, the reranker's scores do not depend on the documents.
        """
        from antiphon.pipelines.server.collections import independent_reranker

        first = next(iter(self.retrievers.values()), None)
        if first is None:
            return None
        return independent_reranker(first) if self.is_shared else first.reranker

    def collections(self, language_model: TextModel, **options: Any) -> list[Collection]:
        """Return the collections with their pipelines.

        Args:
            language_model: the language model. If it is the bundled `reader`, the pipelines quote
                from the passages and do not use this model.
            **options: further options of `Rag`.
        """
        from antiphon.pipelines.rag import Rag
        from antiphon.pipelines.server.collections import Collection, UploadQuota

        answers = None if language_model.prompt_format == "reader" else language_model
        return [
            Collection(
                name,
                Rag(retriever, answers, **options),
                None if name in self.read_only else _uploads(self.locations[name]),
                self.quotas.get(name, UploadQuota()),
            )
            for name, retriever in self.retrievers.items()
        ]


def served_documents(
    index: str | Path | None, collections: Path | None, api_keys: Sequence[str], *, read_only: bool
) -> ServedDocuments:
    """Return the documents and keys of a server without opening them.

    Args:
        index: the folder of an index, as `find_index` returns it, or the address of a table; None: the nearest default
            index, unless there are collections.

    Raises:
        ValueError: both an index and collections are given, or the file of collections is not
            valid.
        OSError: the file cannot be read.
    """
    from antiphon.pipelines.server.access_control import AccessKeys

    if collections is None:
        location = nearest_index() if index is None else index
        locations = {} if location is None else {_collection_name(location): location}
        return ServedDocuments(locations, AccessKeys(api_keys), read_only=set(locations) if read_only else set())
    if index is not None:
        raise ValueError(BOTH)
    from antiphon.pipelines.server.collections import UploadQuota
    from antiphon.pipelines.server.key_file import read_key_file

    entries = read_key_file(collections).collections
    return ServedDocuments(
        {
            name: entry.index if is_postgres(entry.index) else collections.parent / entry.index
            for name, entry in entries.items()
        },
        AccessKeys(api_keys, collections),
        is_shared=True,
        read_only={name for name, each in entries.items() if each.read_only or read_only},
        quotas={
            name: UploadQuota(each.max_upload_bytes, each.max_uploaded_documents) for name, each in entries.items()
        },
    )


def name_for_clients(model: str) -> str:
    """Return the name of a model or folder for clients: its name, or the last part of its path."""
    name = model if "/" not in model and "\\" not in model else Path(model).name
    return re.sub(r"[^\w.:-]+", "-", name).strip("-") or "model"


def _collection_name(location: str | Path) -> str:
    if is_postgres(location):
        return name_for_clients(PostgresAddress.parse(str(location)).table)
    place = Path(location).resolve()
    return "docs" if place.name == DEFAULT_INDEX.name else name_for_clients(place.name)


def _uploads(location: str | Path) -> Path | None:
    """Return the folder of uploaded files, next to the index folder; None if nothing can be uploaded."""
    if is_postgres(location):  # several machines may serve its documents, and they do not share a folder
        console.err.print("Uploads are disabled: add documents to PostgreSQL with antiphon index --add.", markup=False)
        return None
    index = Path(location).resolve()
    folder = index.with_name(f"{index.name}-uploads")
    for place in (index, folder if folder.exists() else folder.parent):
        if not os.access(place, os.W_OK):
            console.err.print(f"Uploads are disabled: {sanitize_line(str(place))} is not writable.", markup=False)
            return None
    return folder
