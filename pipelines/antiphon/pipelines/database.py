"""One SQLite file that any number of processes and threads write to. Knows nothing of what stands in it."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

APPLICATION = 0x416E7470
"""The application id by which SQLite files of ours are known: "Antp"."""

WAIT = 60.0
"""How long one writer waits for others, in seconds."""


class Database:
    """An SQLite file in WAL mode: what a transaction has committed survives kill -9 and a loss of power.

    ``schema`` is executed when the file is made, and ``facts`` are written beside it; a file that was made with other
    facts is refused. A process forked between two transactions opens the file anew. What is deleted is overwritten,
    in the log too as soon as nobody else is reading. Writers take turns by a lock on a file beside it, whose name ends
    with "-turn".

    Raises:
        ValueError: the file is no SQLite file, one of somebody else's, or has other facts.
        OSError: it cannot be opened.
    """

    def __init__(self, path: str | Path, *, schema: str, facts: Mapping[str, str]) -> None:
        self.path = Path(path)
        self._schema = schema
        self._facts = dict(facts)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._start()

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Iterator[sqlite3.Connection]:
        """All of what is done with the connection, or, after an error, nothing of it."""
        if self._pid != os.getpid():
            self._start()  # forked: neither the connection nor the lock of the parent is ours
        with self._lock, self._turn() if writes else nullcontext(), _transaction(self._connection, writes=writes):
            yield self._connection

    def shred(self) -> None:
        """Empty the log, in which deleted texts would otherwise stand for a while; done later if others are reading."""
        with self._lock:
            self._connection.execute("pragma wal_checkpoint(truncate)").fetchall()

    def close(self) -> None:
        """Close the file; the last one to do so leaves nothing beside it."""
        self._close()

    def _start(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        try:
            self._connection = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None, check_same_thread=False)
            self._close = weakref.finalize(self, self._connection.close)
            self._prepare(self._connection)
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path} cannot be opened: {error}.") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path} is not a file that SQLite reads ({error}); give another path.") from error

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until the writers of other processes are done: woken by them, where SQLite polls and may starve."""
        if sys.platform == "win32":
            yield
            return
        import fcntl

        with self.path.with_name(f"{self.path.name}-turn").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing would not do: a process forked meanwhile has it open too

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")
        if _is_empty(connection):
            with _transaction(connection):
                if _is_empty(connection):  # nobody else has made it meanwhile
                    self._make(connection)
        self._check(connection)
        _log_ahead(connection)

    def _make(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"pragma application_id = {APPLICATION}")
        connection.execute("create table facts (name text primary key, value text not null)")
        connection.executemany("insert into facts values (?, ?)", self._facts.items())
        for statement in self._schema.split(";"):
            connection.execute(statement)

    def _check(self, connection: sqlite3.Connection) -> None:
        if connection.execute("pragma application_id").fetchone()[0] != APPLICATION:
            raise ValueError(f"{self.path} is an SQLite file of something else; give another path.")
        written = dict(connection.execute("select name, value from facts"))
        for name, value in self._facts.items():
            if written.get(name) != value:
                raise ValueError(
                    f"{self.path} was made with the {name} {written.get(name)!r}, and this is {value!r}; "
                    "give that one, or another path."
                )


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("select count(*) from sqlite_master").fetchone()[0]


@contextmanager
def _transaction(connection: sqlite3.Connection, *, writes: bool = True) -> Iterator[None]:
    connection.execute("begin immediate" if writes else "begin")
    try:
        yield
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log; while others have the file open SQLite refuses that at once, and does not wait."""
    until = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return
