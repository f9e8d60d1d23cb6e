"""Open a stored index, in a folder or a table of PostgreSQL, before its embedder is loaded."""

from __future__ import annotations

from pathlib import Path

from antiphon.retrieval.collection import require_embedder
from antiphon.retrieval.embedders.by_name import load_embedder
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.errors import IndexMismatch
from antiphon.retrieval.index_folder.store import StoredIndex, read_index
from antiphon.retrieval.postgres.address import is_postgres
from antiphon.retrieval.postgres.index import PostgresIndex

Stored = StoredIndex | PostgresIndex
"""A stored index, with ``location``, ``embedder``, ``fingerprint``, `sources` and `lines`."""


def read_stored(location: str | Path) -> Stored:
    """Read the index in a folder, or connect to the table at an address.

    Raises:
        IndexNotFound: There is no index.
        IndexCorrupt: A file of the index is missing or damaged.
        IndexMismatch: This version cannot read the format, or the table contains something else.
        DatabaseUnavailable: The server does not answer, or refuses the connection.
        ValueError: The address is malformed.
    """
    return PostgresIndex(str(location)) if is_postgres(location) else read_index(location)


def embedder_of_index(store: Stored, given: Embedder | None, device: str | None) -> Embedder:
    """Return the embedder that made an index.

    Args:
        given: The embedder to check. None: load the embedder named in the index.
        device: Where to load the embedder. None: a GPU if there is one.

    Raises:
        IndexMismatch: ``given`` did not make the index, or the embedder that made the index cannot
            be loaded.
    """
    embedder = given or _named(store, device)
    require_embedder(store.location, store.embedder, store.fingerprint, embedder)
    return embedder


def _named(store: Stored, device: str | None) -> Embedder:
    try:
        return load_embedder(store.embedder, device)
    except ValueError as error:
        raise IndexMismatch(
            f"The index in {store.location} was made with the embedder {store.embedder}, which cannot be loaded by "
            f"that name here; pass it as embedder=. ({error})"
        ) from error
