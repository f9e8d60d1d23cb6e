"""Write and read an index folder: passages and their keyword index in SQLite, vectors in separate files."""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.document_role import keyword_fields
from antiphon.retrieval.errors import IndexCorrupt
from antiphon.retrieval.filters import MetadataFilter, json_metadata
from antiphon.retrieval.index_folder.filter_sql import sql_condition
from antiphon.retrieval.index_folder.generations import read_generation, write_generation
from antiphon.retrieval.keywords import search_terms
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.source_file import SOURCE_FILE, SourceFile
from antiphon.retrieval.vector_index.build import LocalVectorIndex
from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.files import open_vectors, read_vectors, write_array, write_vectors
from antiphon.retrieval.vector_index.flat import StoredVectors

_PASSAGES = "passages.sqlite"
_TOKENS = "token_counts.npy"
_SCHEMA = """
create table passages (
    row integer primary key, id text not null unique, text text not null, source text not null,
    start integer not null, "end" integer not null, metadata text not null
)
"""
_COLUMNS = 'row, id, text, source, start, "end", metadata'
_FETCH = f"select {_COLUMNS} from passages where row in (select value from json_each(?))"
_WORDS = """
create virtual table words using fts5 (
    title, text, name, content = '', tokenize = "porter unicode61 categories 'L* N* Co Mn Mc'"
)
"""
_RANK = "insert into words (words, rank) values ('rank', 'bm25(1.0, 1.0, 0.3)')"  # weights of title, text and name
_DOCUMENTS = f"""
select source, count(*), json_extract(min(metadata), '$.{SOURCE_FILE}') from passages group by source order by source
"""
_ROWS = "select row from passages where {allowed} order by row"
_IDS = "select id from passages where source = ? order by row"
_BM25 = "select rowid, -rank from words where words match ? and {allowed} order by rank limit ?"


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The content of an index folder.

    Attributes:
        vectors: The vectors, of shape (passages, dim); row ``i`` belongs to passage ``i``. The type
            is float32 if search is exact, else float16. A large array is memory-mapped.
        token_counts: For each token id, the number of passages that contain it; None if the index
            has no token counts.
        description: How the vectors are searched.
        files: The subfolder of this generation.
    """

    folder: Path
    embedder: str
    fingerprint: str
    passages: PassageTable
    vectors: StoredVectors
    token_counts: NDArray[np.int64] | None
    description: IndexDescription
    files: Path

    @property
    def location(self) -> str:
        """The index folder, for messages."""
        return str(self.folder)

    def sources(self) -> dict[str, int]:
        """Return, for each source, its number of passages. The result is sorted by source."""
        return self.passages.sources()

    def documents(self) -> dict[str, tuple[int, SourceFile | None]]:
        """Return, for each source, its number of passages and its file; sorted by source."""
        return self.passages.documents()

    def lines(self) -> list[str]:
        """Return a description of the index as lines of text."""
        return self.description.lines()

    def open_vectors(self) -> LocalVectorIndex:
        """Open the vector index as it was built.

        Raises:
            IndexMismatch: The installed version of FAISS cannot read the index.
        """
        return open_vectors(self.files, self.vectors, self.description)


class PassageTable:
    """The passages of one generation, read from SQLite on demand. Thread-safe."""

    def __init__(self, path: Path) -> None:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._lock = threading.Lock()
        weakref.finalize(self, self._connection.close)

    def __len__(self) -> int:
        return int(self._query("select count(*) from passages")[0][0])

    def __getitem__(self, row: int) -> Passage:
        return self.fetch([row])[0]

    def __iter__(self) -> Iterator[Passage]:
        """Iterate over all passages, in row order."""
        return (_passage(record) for record in self._query(f"select {_COLUMNS} from passages order by row"))

    def fetch(self, rows: Sequence[int]) -> list[Passage]:
        """Return the passages of these rows in the given order, with one SQL statement.

        Raises:
            IndexError: A row does not exist.
        """
        asked = json.dumps([int(row) for row in rows])
        found = {record[0]: _passage(record) for record in self._query(_FETCH, (asked,))}
        missing = next((row for row in rows if int(row) not in found), None)
        if missing is not None:
            raise IndexError(f"There is no passage {missing}; rows are 0 to {len(self) - 1}.")
        return [found[int(row)] for row in rows]

    def of_id(self, identifier: str) -> Passage | None:
        """Return the passage with this id, or None."""
        found = self._query(f"select {_COLUMNS} from passages where id = ?", (identifier,))
        return _passage(found[0]) if found else None

    def ids_of(self, source: str) -> list[str]:
        """Return the ids of the passages of a source, in row order."""
        return [identifier for (identifier,) in self._query(_IDS, (source,))]

    def sources(self) -> dict[str, int]:
        """Return, for each source, its number of passages. The result is sorted by source."""
        return dict(self._query("select source, count(*) from passages group by source order by source"))

    def documents(self) -> dict[str, tuple[int, SourceFile | None]]:
        """Return, for each source, its number of passages and its file; sorted by source."""
        rows = self._query(_DOCUMENTS)
        return {name: (count, SourceFile.of({SOURCE_FILE: json.loads(file or "null")})) for name, count, file in rows}

    def allowed(self, where: MetadataFilter) -> NDArray[np.bool_]:
        """Return a mask of shape (passages,) that is True for the passages that match a filter."""
        sql, values = sql_condition(where)
        allowed = np.zeros(len(self), np.bool_)
        allowed[[row for (row,) in self._query(_ROWS.format(allowed=sql), values)]] = True
        return allowed

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[tuple[int, float]]:
        """Return at most ``k`` rows that share words with a question, with their BM25 scores, best first.

        Words are compared by their stems, with the Porter stemmer for English. See `keywords` for
        other scripts, and for tokens such as ``3.1.0`` and ``--no-cache-dir``.
        """
        words = search_terms(question)
        if not words:
            return []
        sql, values = sql_condition(where) if where else ("", ())
        allowed = f"rowid in (select row from passages where {sql})" if sql else "true"
        asked = " OR ".join(f'"{word}"' for word in words)
        return self._query(_BM25.format(allowed=allowed), (asked, *values, k))

    def _query(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(sql, values).fetchall()


def write_index(
    folder: Path,
    passages: Sequence[Passage],
    vectors: LocalVectorIndex,
    *,
    description: IndexDescription,
    embedder: str,
    fingerprint: str,
    token_counts: NDArray[np.int64] | None = None,
    after: StoredIndex | None = None,
) -> None:
    """Write an index as a new generation; an existing index is replaced atomically.

    Args:
        folder: The index folder, which the caller has locked with `lock_for_writing`.
        vectors: The vector index; row ``i`` belongs to passage ``i``.
        description: How the vectors are searched.
        embedder: The name of the embedder that made the vectors.
        token_counts: For each token id, the number of passages that contain it.
        after: The index from which this index was derived; it must still be the current index.

    Raises:
        ValueError: The numbers of passages and vectors differ.
        BlockingIOError: Another process has changed the folder since ``after``.
        OSError: The disk is full.
    """
    if len(passages) != len(vectors):
        raise ValueError(f"{len(passages)} passages and {len(vectors)} vectors; each passage needs one.")

    def write(target: Path) -> None:
        _write_passages(target / _PASSAGES, passages)
        write_vectors(target, vectors)
        if token_counts is not None:
            write_array(target / _TOKENS, token_counts, np.int64)

    facts = {
        "embedder": embedder,
        "fingerprint": fingerprint,
        "dim": vectors.dim,
        "passages": len(passages),
        "search": asdict(description),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_generation(folder, write, facts, after=None if after is None else after.files.name)


def read_index(folder: str | Path) -> StoredIndex:
    """Read the index in a folder after checking every byte of it.

    Raises:
        IndexNotFound: The folder contains no index.
        IndexCorrupt: A file is missing or damaged, or the files do not belong together.
        IndexMismatch: This version cannot read the format.
    """
    generation = read_generation(Path(folder))
    facts = generation.facts
    passages = PassageTable(generation.folder / _PASSAGES)
    description = IndexDescription.from_dict(facts["search"])
    vectors = read_vectors(generation.folder)
    tokens = generation.folder / _TOKENS
    expected = (facts["passages"], facts["dim"])
    if vectors.shape != expected or len(passages) != facts["passages"]:
        raise IndexCorrupt(
            f"The index is damaged: its manifest names {expected[0]} passages of {expected[1]} numbers, "
            f"its vectors are {vectors.shape} and {_PASSAGES} has {len(passages)}. Make it again."
        )
    counts = np.load(tokens, allow_pickle=False) if tokens.is_file() else None
    return StoredIndex(
        folder=Path(folder),
        embedder=facts["embedder"],
        fingerprint=facts["fingerprint"],
        passages=passages,
        vectors=vectors,
        token_counts=counts,
        description=description,
        files=generation.folder,
    )


def _write_passages(path: Path, passages: Sequence[Passage]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("pragma journal_mode = off")  # no journal, because the whole folder is replaced atomically
        connection.execute("pragma synchronous = off")
        connection.execute(_SCHEMA)
        connection.execute(_WORDS)
        connection.execute(_RANK)
        connection.executemany(f"insert into passages ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)", _records(passages))
        words = ((row, *keyword_fields(passage)) for row, passage in enumerate(passages))
        connection.executemany("insert into words (rowid, title, text, name) values (?, ?, ?, ?)", words)


def _records(passages: Sequence[Passage]) -> Iterator[tuple[Any, ...]]:
    for row, passage in enumerate(passages):
        metadata = json.dumps(json_metadata(passage), ensure_ascii=False)
        yield row, passage.id, passage.text, passage.source, passage.start, passage.end, metadata


def _passage(record: tuple[Any, ...]) -> Passage:
    _, identifier, text, source, start, end, metadata = record
    return Passage(text, identifier, source, start, end, None, json.loads(metadata))
