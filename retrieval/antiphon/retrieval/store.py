"""An index on disk: passages and their words in SQLite, their vectors beside them. Knows nothing of models."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.collection import Where, checked_where
from antiphon.retrieval.description import Description
from antiphon.retrieval.durable import write_array
from antiphon.retrieval.generation import IndexCorrupt, read_generation, write_generation
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vector_files import LocalVectors, open_vectors, read_vectors, write_vectors
from antiphon.retrieval.vectors import Rows
from antiphon.retrieval.write_lock import HeldLock

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
_WORDS = "create virtual table words using fts5 (title, text, content = '', tokenize = 'porter unicode61')"
_ROWS = "select row from passages where {allowed} order by row"
_IDS = "select id from passages where source = ? order by row"
_BM25 = "select rowid, -rank from words where words match ? and {allowed} order by rank limit ?"


@dataclass(frozen=True, slots=True)
class Store:
    """The content of an index: row ``i`` of ``vectors``, of shape (passages, dim), belongs to passage ``i``.

    ``vectors`` are float32 where search is exact and float16 elsewhere; many are mapped into memory, not read.
    ``description`` says what searches them. ``token_counts[t]``, where the embedder has tokens, is the number of
    passages that hold token ``t``. ``files`` is the folder of this generation. ``has_headings`` says that vectors are
    of texts under their headings; an earlier version embedded the texts alone.
    """

    folder: Path
    embedder: str
    fingerprint: str
    created: str
    passages: PassageTable
    vectors: Rows
    token_counts: NDArray[np.int64] | None
    description: Description
    files: Path
    has_headings: bool = False

    def open_vectors(self, *, gpu: bool = False) -> LocalVectors:
        """The vector index, as it was built.

        Raises:
            ImportError: it needs FAISS, which is not installed; says the command.
            RuntimeError: a GPU is asked for and FAISS finds none.
            IndexMismatch: another version of FAISS wrote it, which this one cannot read.
        """
        return open_vectors(self.files, self.vectors, self.description, gpu=gpu)


class PassageTable:
    """The passages of one generation, read from SQLite when they are asked for; safe under threads."""

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
        """All passages in the order of their rows."""
        return (_passage(record) for record in self._query(f"select {_COLUMNS} from passages order by row"))

    def fetch(self, rows: Sequence[int]) -> list[Passage]:
        """The passages of these rows, in this order, read in one statement.

        Raises:
            IndexError: there is no such row.
        """
        asked = json.dumps([int(row) for row in rows])
        found = {record[0]: _passage(record) for record in self._query(_FETCH, (asked,))}
        missing = next((row for row in rows if int(row) not in found), None)
        if missing is not None:
            raise IndexError(f"There is no passage {missing}; rows are 0 to {len(self) - 1}.")
        return [found[int(row)] for row in rows]

    def of_id(self, identifier: str) -> Passage | None:
        """The passage of this id; None where there is none."""
        found = self._query(f"select {_COLUMNS} from passages where id = ?", (identifier,))
        return _passage(found[0]) if found else None

    def ids_of(self, source: str) -> list[str]:
        """The ids of the passages of a source, in the order of their rows."""
        return [identifier for (identifier,) in self._query(_IDS, (source,))]

    def sources(self) -> dict[str, int]:
        """The sources by name, and how many passages each has."""
        return dict(self._query("select source, count(*) from passages group by source order by source"))

    def allowed(self, where: Where) -> NDArray[np.bool_]:
        """Of each row, whether its passage may be found; of shape (passages,)."""
        sql, values = _condition(where)
        allowed = np.zeros(len(self), np.bool_)
        allowed[[row for (row,) in self._query(_ROWS.format(allowed=sql), values)]] = True
        return allowed

    def matching(self, question: str, k: int, where: Where | None = None) -> list[tuple[int, float]]:
        """The rows that share words with a question, and their BM25 scores, best first: at most ``k``.

        Words are compared by their stems (Porter's, for English) in titles and texts. A script that writes no spaces
        has no words to this: it finds nothing.
        """
        words = dict.fromkeys(re.findall(r"\w+", question.lower()))
        if not words:
            return []
        sql, values = _condition(where) if where else ("", ())
        allowed = f"rowid in (select row from passages where {sql})" if sql else "true"
        asked = " OR ".join(f'"{word}"' for word in words)
        return self._query(_BM25.format(allowed=allowed), (asked, *values, k))

    def _query(self, sql: str, values: tuple[int | str, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(sql, values).fetchall()


def write_store(
    folder: Path,
    passages: Sequence[Passage],
    vectors: LocalVectors,
    *,
    description: Description,
    embedder: str,
    fingerprint: str,
    token_counts: NDArray[np.int64] | None = None,
    after: Store | None = None,
    held: HeldLock | None = None,
    has_headings: bool = True,
) -> None:
    """Save an index, all of it or nothing; the one that was there is replaced at the very end.

    ``after`` is the content that it was made of, if it was: it must be what is there still. ``held`` is
    the lock of a caller that has it already.

    Raises:
        ValueError: passages and vectors differ in number, or the folder holds other things than an index.
        BlockingIOError: another process is writing to it, or has written to it since.
        OSError: there is no room for it.
    """
    if len(passages) != len(vectors):
        raise ValueError(f"{len(passages)} passages and {len(vectors)} vectors; each passage needs one.")

    def write(beside: Path) -> None:
        _write_passages(beside / _PASSAGES, passages)
        write_vectors(beside, vectors)
        if token_counts is not None:
            write_array(beside / _TOKENS, token_counts, np.int64)

    facts = {
        "embedder": embedder,
        "fingerprint": fingerprint,
        "dim": vectors.dim,
        "passages": len(passages),
        "headings": has_headings,
        "search": description.as_dict(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_generation(folder, write, facts, after=None if after is None else after.files.name, held=held)


def read_store(folder: str | Path) -> Store:
    """The index in a folder, checked byte by byte.

    Raises:
        IndexNotFound: there is none.
        IndexCorrupt: a file is missing or damaged, or the files disagree; names it.
        IndexMismatch: its format is one that this version does not read.
    """
    generation = read_generation(Path(folder))
    facts = generation.facts
    passages = PassageTable(generation.folder / _PASSAGES)
    description = Description.from_dict(facts["search"])
    vectors = read_vectors(generation.folder, in_memory=description.in_memory)
    tokens = generation.folder / _TOKENS
    expected = (facts["passages"], facts["dim"])
    if vectors.shape != expected or len(passages) != facts["passages"]:
        raise IndexCorrupt(
            f"The index is damaged: its manifest names {expected[0]} passages of {expected[1]} numbers, "
            f"its vectors are {vectors.shape} and {_PASSAGES} has {len(passages)}. Make it again."
        )
    counts = np.load(tokens, allow_pickle=False) if tokens.is_file() else None
    return Store(
        folder=Path(folder),
        embedder=facts["embedder"],
        fingerprint=facts["fingerprint"],
        created=facts["created"],
        passages=passages,
        vectors=vectors,
        token_counts=counts,
        description=description,
        files=generation.folder,
        has_headings=facts.get("headings", False),
    )


def _write_passages(path: Path, passages: Sequence[Passage]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("pragma journal_mode = off")  # the folder as a whole is what is atomic
        connection.execute("pragma synchronous = off")
        connection.execute(_SCHEMA)
        connection.execute(_WORDS)
        connection.executemany(f"insert into passages ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)", _records(passages))
        words = ((row, passage.metadata.get("title", ""), passage.text) for row, passage in enumerate(passages))
        connection.executemany("insert into words (rowid, title, text) values (?, ?, ?)", words)


def _records(passages: Sequence[Passage]) -> Iterator[tuple[Any, ...]]:
    for row, passage in enumerate(passages):
        metadata = json.dumps(dict(passage.metadata), ensure_ascii=False)
        yield row, passage.id, passage.text, passage.source, passage.start, passage.end, metadata


def _condition(where: Where) -> tuple[str, tuple[str, ...]]:
    """A filter in SQL: a condition for each name, and their values."""
    parts: list[str] = []
    values: list[str] = []
    for name, value in checked_where(where).items():
        if name == "source":
            parts.append("source = ?")
        else:
            parts.append("exists (select 1 from json_each(metadata) where key = ? and value = ?)")
            values.append(name)
        values.append(value)
    return " and ".join(parts) or "true", tuple(values)


def _passage(record: tuple[Any, ...]) -> Passage:
    _, identifier, text, source, start, end, metadata = record
    return Passage(text, identifier, source, start, end, None, json.loads(metadata))
