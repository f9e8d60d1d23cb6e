"""Stored sessions: questions and answers that are references for drafting answers to similar questions."""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock

from antiphon.retrieval import Embedder, load_embedder
from antiphon.retrieval.vector_index.flat import FlatIndex, Vectors, normalized

APPLICATION = 0x416E7470
"""The application id that identifies our SQLite files: "Antp"."""

WAIT = 60.0
"""Seconds that a connection waits for a lock of another connection."""

_SCHEMA = f"""
begin immediate;
pragma application_id = {APPLICATION};
create table facts (name text primary key, value text not null);
create table sessions (
    id integer primary key autoincrement, namespace text not null, question text not null, answer text not null,
    vector blob not null, created real not null, used real not null, unique (namespace, question)
);
create index by_use on sessions (namespace, used);
"""
_ADD = """
insert into sessions (namespace, question, answer, vector, created, used) values (?, ?, ?, ?, ?, ?)
on conflict (namespace, question) do update
set answer = excluded.answer, vector = excluded.vector, created = excluded.created, used = excluded.used
"""
_USE = "update sessions set used = ? where id = ? and namespace = ? returning question, answer"
_EVICT = """
delete from sessions where namespace = ? and id in
(select id from sessions where namespace = ? order by used desc, id desc limit -1 offset ?)
"""


@dataclass(frozen=True, slots=True)
class Session:
    """A stored question, its answer, and the cosine similarity of the stored and the new question."""

    question: str
    answer: str
    similarity: float


class SessionStore:
    """Questions and answers in an SQLite file, searched by the meaning of a new question.

    A stored answer is only a reference for drafting and never returned, so it does not change the output, except at
    ties in half precision. Several processes and threads may use one file. The file is in WAL mode: an answer that
    `add` has stored survives kill -9 and a power failure. Deleted data is overwritten. A new file is readable by its
    owner only.

    Args:
        namespace: the tenant. Searches of one tenant never find the sessions of another tenant.
        embedder: an embedder, or its name (see `load_embedder`). An existing file can only be
            opened with the embedder with which it was made.
        max_sessions: number of sessions to keep in the namespace. The sessions that were most
            recently added or found are kept.
        max_age: maximum age in seconds; None: any.
        k: maximum number of sessions that a question finds.
        similarity: minimum cosine similarity.

    Raises:
        ValueError: the file has another embedder or is not a store of sessions, or a number is out of range.
        OSError: the file cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        namespace: str = "default",
        embedder: Embedder | str = "auto",
        max_sessions: int = 10_000,
        max_age: float | None = None,
        k: int = 3,
        similarity: float = 0.8,
    ) -> None:
        for name, number in (("max_sessions", max_sessions), ("k", k)):
            if number < 1:
                raise ValueError(f"{name} is {number}; a store of sessions needs at least 1.")
        if max_age is not None and max_age <= 0:
            raise ValueError(f"max_age is {max_age}; it must be more than 0 seconds, or None for any age.")
        self.namespace = namespace
        self.embedder = load_embedder(embedder) if isinstance(embedder, str) else embedder
        self.max_sessions, self.max_age = max_sessions, max_age
        self.k, self.similarity = k, similarity
        self.path = Path(path)
        try:
            self._open()
        except sqlite3.OperationalError as error:
            raise OSError(f"{path} cannot be opened: {error}.") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} is not an SQLite file ({error}); give another path.") from error

    def __len__(self) -> int:
        with self._transaction(writes=False) as connection:
            own = connection.execute("select count(*) from sessions where namespace = ?", (self.namespace,))
            return int(own.fetchone()[0])

    def add(self, question: str, answer: str) -> None:
        """Store an answer durably; it replaces an earlier answer to the same question."""
        vector = self._vector(question).astype("<f2").tobytes()
        now = time.time()
        with self._transaction() as connection:
            connection.execute(_ADD, (self.namespace, question, answer, vector, now, now))
            connection.execute(
                "delete from sessions where namespace = ? and created < ?", (self.namespace, self._oldest())
            )
            connection.execute(_EVICT, (self.namespace, self.namespace, self.max_sessions))

    def similar(self, question: str) -> list[Session]:
        """Return the sessions of the most similar questions, most similar first, and mark them as used."""
        with self._transaction(writes=False) as connection:
            rows = connection.execute(
                "select id, vector from sessions where namespace = ? and created >= ?",
                (self.namespace, self._oldest()),
            ).fetchall()
        if not rows:
            return []
        vectors = np.frombuffer(b"".join(vector for _, vector in rows), "<f2").reshape(len(rows), -1)
        hits = FlatIndex(vectors.astype(np.float32)).search(self._vector(question)[None], self.k)[0]
        pairs = zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)
        return self._use({rows[row][0]: score for row, score in pairs if score >= self.similarity})

    def forget(self, question: str) -> bool:
        """Delete the answer to a question, and overwrite it in the file and its log; return whether there was one.

        A warning is given if readers in other processes prevent emptying the log. A replaced or
        evicted session is overwritten in the file at once, and in the log when SQLite reuses the
        log.
        """
        return bool(self._delete("namespace = ? and question = ?", self.namespace, question))

    def clear(self) -> int:
        """Delete all sessions of the namespace, as `forget` does, and return their number."""
        return self._delete("namespace = ?", self.namespace)

    def _open(self) -> None:
        """Create the file if there is none, and check that it is a store of this embedder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # the file exists, or SQLite will say why it cannot be created
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        metadata = {"format": "sessions 1", "embedder": self.embedder.fingerprint}
        # While another connection has the file open, SQLite refuses to switch to WAL mode, without
        # waiting.
        with (
            FileLock(f"{self.path}.lock", mode=0o600),
            closing(sqlite3.connect(self.path, timeout=WAIT)) as connection,
        ):
            if not connection.execute("select count(*) from sqlite_master").fetchone()[0]:
                connection.executescript(_SCHEMA)
                connection.executemany("insert into facts values (?, ?)", metadata.items())
                connection.commit()
            if connection.execute("pragma application_id").fetchone()[0] != APPLICATION:
                raise ValueError(f"{self.path} is an SQLite file of another program; give another path.")
            connection.execute("pragma journal_mode = wal")
            written = dict(connection.execute("select name, value from facts"))
        for name, value in metadata.items():
            if written.get(name) != value:
                raise ValueError(
                    f"{self.path} was made with the {name} {written.get(name)!r}, and this is {value!r}; "
                    "give that one, or another path."
                )

    @contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[sqlite3.Connection]:
        """Run the ``with`` block as a transaction: commit at its end, roll back after an error.

        The connection is closed afterwards, because connections do not survive a fork.
        """
        with closing(sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)) as connection:
            connection.execute("pragma synchronous = full")
            connection.execute("pragma secure_delete = on")
            connection.execute("begin immediate" if writes else "begin")
            with connection:
                yield connection

    def _vector(self, question: str) -> Vectors:
        vector: Vectors = normalized(self.embedder.embed_queries([question]), dim=self.embedder.dim)[0]
        return vector

    def _oldest(self) -> float:
        return 0.0 if self.max_age is None else time.time() - self.max_age

    def _use(self, scores: dict[int, float]) -> list[Session]:
        """Mark sessions as used; return them in the order of ``scores``, without sessions deleted in the meantime."""
        found: list[Session] = []
        if scores:
            with self._transaction() as connection:
                for number, score in scores.items():
                    rows = connection.execute(_USE, (time.time(), number, self.namespace))
                    found += [Session(question, answer, score) for question, answer in rows]
        return found

    def _delete(self, where: str, *values: str) -> int:
        """Delete sessions, and empty the write-ahead log, because it may contain them."""
        until = time.monotonic() + WAIT
        with self._transaction() as connection:
            deleted = connection.execute(f"delete from sessions where {where}", values).rowcount
            connection.commit()
            # SQLite itself waits for readers, but not for a concurrent checkpoint.
            while connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
                if time.monotonic() > until:
                    warnings.warn(
                        f"Deleted sessions may remain in the log of {self.path}, because others are reading it; they "
                        "are removed with the next deletion, or when the last reader ends.",
                        stacklevel=3,
                    )
                    break
                time.sleep(0.01)
        return deleted
