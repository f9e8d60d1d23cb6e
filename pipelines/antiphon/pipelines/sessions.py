"""Cached sessions: what was answered to which question, to draft from when a similar one comes. Knows no tokens."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.pipelines.database import Database
from antiphon.retrieval import Embedder, resolve
from antiphon.retrieval.vectors import FlatIndex, Vectors, normalized

_SCHEMA = """
create table sessions (
    id integer primary key autoincrement, namespace text not null, question text not null, answer text not null,
    vector blob not null, created real not null, used real not null, unique (namespace, question)
);
create index by_use on sessions (namespace, used)
"""
_ADD = """
insert into sessions (namespace, question, answer, vector, created, used) values (?, ?, ?, ?, ?, ?)
on conflict (namespace, question) do update
set answer = excluded.answer, vector = excluded.vector, created = excluded.created, used = excluded.used
"""
_EVICT = """
delete from sessions where namespace = ? and id in
(select id from sessions where namespace = ? order by used desc, id desc limit -1 offset ?)
"""


@dataclass(frozen=True, slots=True)
class Session:
    """A question, what was answered to it, and how similar it is to the one that found it: a cosine."""

    question: str
    answer: str
    similarity: float


class SessionStore:
    """Questions and their answers in one SQLite file, found again by the meaning of a new question.

    Its answers are never returned to a user: they are drafted from, which changes no word
    (in half precision none but where two tokens tie). Any number of
    processes and threads may use one file; what `add` has returned from is there after kill -9 and a loss of power.
    Each process opens a store of its own, one that was forked too.

    A ``namespace`` holds the sessions of one tenant and is never searched for another. It keeps ``max_sessions``, those
    that were added or found the latest, and none that is older than ``max_age`` (seconds; None: any age). A question
    finds the ``k`` most similar ones, of a cosine of ``similarity`` at least.

    ``embedder`` is one that is loaded, or the name of one (see `resolve`). A file is searched with the embedder that
    made it.

    Raises:
        ValueError: the file was made with another embedder or is no such store, or a number is out of range.
        ImportError: the embedder is not installed; says the command.
        RuntimeError: it is used in a process that was forked from the one that opened it.
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
            raise ValueError(f"max_age is {max_age}; it needs to be over 0 seconds, or None for any age.")
        self.namespace = namespace
        self.embedder = resolve(embedder) if isinstance(embedder, str) else embedder
        self.max_sessions, self.max_age = max_sessions, max_age
        self.k, self.similarity = k, similarity
        facts = {"format": "sessions 1", "embedder": self.embedder.fingerprint}
        self._database = Database(path, schema=_SCHEMA, facts=facts)

    def __len__(self) -> int:
        with self._database.transaction(writes=False) as connection:
            own = connection.execute("select count(*) from sessions where namespace = ?", (self.namespace,))
            return int(own.fetchone()[0])

    def add(self, question: str, answer: str) -> None:
        """Keep an answer; it is on the disk when this returns. Of an equal question the latest answer is kept."""
        vector = self._vector(question).astype("<f2").tobytes()
        now = time.time()
        with self._database.transaction() as connection:
            connection.execute(_ADD, (self.namespace, question, answer, vector, now, now))
            connection.execute(
                "delete from sessions where namespace = ? and created < ?", (self.namespace, self._oldest())
            )
            connection.execute(_EVICT, (self.namespace, self.namespace, self.max_sessions))

    def similar(self, question: str) -> list[Session]:
        """The sessions of the most similar questions, most similar first; they count as used now."""
        with self._database.transaction(writes=False) as connection:
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
        """Delete the answer to a question, with every byte of it in the file and its log; whether there was one.

        Warns where others read for so long that the log could not be emptied. What makes way by itself (age, number,
        a later answer) is overwritten in the file, and in the log when SQLite gets to it.
        """
        return bool(self._delete("namespace = ? and question = ?", self.namespace, question))

    def clear(self) -> int:
        """Delete all sessions of the namespace, as `forget` does; how many there were."""
        return self._delete("namespace = ?", self.namespace)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _vector(self, question: str) -> Vectors:
        vector: Vectors = normalized(self.embedder.embed_queries([question]), dim=self.embedder.dim)[0]
        return vector

    def _oldest(self) -> float:
        return 0.0 if self.max_age is None else time.time() - self.max_age

    def _use(self, scores: dict[int, float]) -> list[Session]:
        """The sessions of these ids, in this order; one that somebody has deleted meanwhile is left out."""
        found: list[Session] = []
        if scores:
            with self._database.transaction() as connection:
                for number, score in scores.items():
                    own = (number, self.namespace)
                    connection.execute(
                        "update sessions set used = ? where id = ? and namespace = ?", (time.time(), *own)
                    )
                    rows = connection.execute(
                        "select question, answer from sessions where id = ? and namespace = ?", own
                    )
                    found += [Session(question, answer, score) for question, answer in rows]
        return found

    def _delete(self, where: str, *values: str) -> int:
        with self._database.transaction() as connection:
            deleted = connection.execute(f"delete from sessions where {where}", values).rowcount
        if not self._database.shred():
            warnings.warn(
                f"What was deleted may still stand in the log beside {self._database.path}, which others are reading; "
                "it goes with the next deletion, or when the last of them closes the file.",
                stacklevel=3,
            )
        return deleted
