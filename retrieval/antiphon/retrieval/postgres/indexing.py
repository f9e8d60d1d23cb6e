"""Index documents into a table of PostgreSQL: embed new texts, and change the table in one transaction."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from antiphon.accel.cache_folder import cache_folder
from antiphon.retrieval.collection import require_distinct, require_savable
from antiphon.retrieval.document_changes import StoredDocuments
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.embedding import embed_texts
from antiphon.retrieval.errors import IndexNotFound
from antiphon.retrieval.filters import json_metadata
from antiphon.retrieval.index_folder.unfinished import read_unfinished, save_unfinished
from antiphon.retrieval.load import Progress
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.postgres.address import PostgresAddress
from antiphon.retrieval.postgres.index import PostgresIndex


class PostgresTarget:
    """A table that `build_index` changes. Several processes may change it at once.

    Raises:
        ValueError: The address is malformed.
    """

    excluded: Sequence[Path] = ()

    def __init__(self, url: str) -> None:
        self.location = PostgresAddress.parse(url).shown
        self._url = url
        self._before: StoredDocuments = {}

    def embedder(self) -> str | None:
        """Return the name of the embedder that made the table, or None if there is no table."""
        try:
            return PostgresIndex(self._url).embedder
        except IndexNotFound:
            return None

    @contextmanager
    def opened(self, embedder: Embedder) -> Iterator[StoredDocuments]:
        """Check that the table can be used or created; yield the documents in it."""
        self._index = PostgresIndex(self._url, embedder, dry_run=True)
        self._before = self._index.documents() if self._index.exists else {}
        yield self._before

    def write(self, passages: Sequence[Passage], kept: Collection[str], embedder: Embedder, report: Progress) -> int:
        """Replace the documents of the table; return the number of passages whose vectors were reused.

        If the run is interrupted or the server stops answering, the new vectors are saved for the next run.

        Args:
            kept: The sources of the documents to keep unchanged; all other documents are dropped.
            report: Called with the stages ``embed`` and ``save``.
        """
        require_distinct(passages)
        require_savable(passages)
        index = self._index
        read = {passage.source for passage in passages}
        stored = {passage.id: passage for passage in index.passages_of([*read])} if index.exists else {}
        unchanged = {each.id for each in passages if stored.get(each.id) == replace(each, metadata=json_metadata(each))}
        new = [passage for passage in passages if passage.id not in unchanged]
        texts = [passage.text_with_headings for passage in new]
        cache = cache_folder() / "unfinished" / sha256(self.location.encode()).hexdigest()[:32]
        known = index.vectors_of(new) if index.exists else {}
        known |= read_unfinished(cache, embedder.fingerprint, texts)
        vectors = dict(known)
        try:
            embedded = embed_texts(texts, embedder, vectors, report)
            report("save", 0, 1)
            gone = {*self._before, *read} - {*kept}
            if not index.exists:
                index = PostgresIndex(self._url, embedder)
            index.replace_documents([*gone], new, embedded, unchanged=[*unchanged])
        except BaseException:
            if len(vectors) > len(known):
                with suppress(OSError):
                    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
                save_unfinished(cache, embedder.fingerprint, vectors)
            raise
        shutil.rmtree(cache, ignore_errors=True)
        report("save", 1, 1)
        return len(unchanged) + sum(text in known for text in texts)
