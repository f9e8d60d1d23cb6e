"""One SQLite file that any number of processes and threads write to. Knows nothing of what stands in it."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

APPLICATION = 0x416E7470
"""The application id by which SQLite files of ours are known: "Antp"."""

WAIT = 60.0
"""How long one writer waits for others, in seconds."""

_INHERITED: list[sqlite3.Connection] = []
"""Connections of a process that this one was forked from: never closed here, since that could empty the log there."""


class Database:
    """An SQLite file in WAL mode: what a transaction has committed survives kill -9 and a loss of power.

    ``schema`` is executed when the file is made, and ``facts`` are written beside it; a file that was made with other
    facts is refused. It serves the process that opened it: SQLite's connections do not outlive a fork. What is deleted
    is overwritten, in the log too once that is shredded. A file that is made can be read by its owner alone. Writers
    take turns by a lock on a file beside it, whose name ends with "-turn".

    Raises:
        ValueError: the file is no SQLite file, one of another program, or has other facts.
        OSError: it cannot be opened.
        RuntimeError: it is used in another process than the one that opened it.
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
        self._expect_own()
        with self._lock, self._turn() if writes else nullcontext(), _transaction(self._connection, writes=writes):
            yield self._connection

    def shred(self) -> bool:
        """Empty the log, in which deleted texts would otherwise stand for a while; whether others let it be emptied."""
        self._expect_own()
        until = time.monotonic() + WAIT
        with self._lock, self._turn():
            while self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
                if time.monotonic() > until:
                    return False
                time.sleep(0.01)  # SQLite waits for readers by itself, and not for another checkpoint
        return True

    def close(self) -> None:
        """Close the file; the last one to do so leaves nothing beside it. In another process it does nothing."""
        self._close()

    def _expect_own(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                f"{self.path} was opened in process {self._pid}, and this is process {os.getpid()}, which was forked "
                "from it; open the file anew here."
            )

    def _start(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        try:
            _make_private(self.path)
            self._connection = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None, check_same_thread=False)
            self._close = weakref.finalize(self, _close, self._connection, self._pid)
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

        turn = self.path.with_name(f"{self.path.name}-turn")
        _make_private(turn)
        with turn.open("ab") as file:
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


def _make_private(path: Path) -> None:
    """Make the file, for its owner alone, if it is not there; SQLite gives those beside it the same rights."""
    with suppress(OSError):  # it is there, or SQLite says why it cannot be
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        connection.close()
    else:
        _INHERITED.append(connection)


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("select count(*) from sqlite_master").fetchone()[0]


@contextmanager
def _transaction(connection: sqlite3.Connection, *, writes: bool = True) -> Iterator[None]:
    connection.execute("begin immediate" if writes else "begin")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # after some errors SQLite has rolled back by itself
            connection.execute("rollback")
        raise


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
