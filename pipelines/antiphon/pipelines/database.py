"""An SQLite file that several processes and threads can write to."""

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
"""The application id that identifies our SQLite files: "Antp"."""

WAIT = 60.0
"""Seconds that a writer waits for others."""

_INHERITED: list[sqlite3.Connection] = []
"""Connections of the parent process after a fork. They are never closed here: that could empty the parent's log."""


class Database:
    """An SQLite file in WAL mode: committed transactions survive kill -9 and a power failure.

    It can be used only in the process that opened it, because SQLite's connections do not survive a fork. Deleted data
    is overwritten in the file, and in the log when `shred` is called. A new file is readable by its owner only. Writers
    take turns by locking a second file with the suffix "-turn".

    Args:
        path: the file.
        schema: SQL statements that are executed when the file is created.
        metadata: values that are stored in a new file and must be equal in an existing one.

    Raises:
        ValueError: the file is not an SQLite file, belongs to another program, or has other metadata.
        OSError: it cannot be opened.
        RuntimeError: it is used in another process than the one that opened it.
    """

    def __init__(self, path: str | Path, *, schema: str, metadata: Mapping[str, str]) -> None:
        self.path = Path(path)
        self._schema = schema
        self._metadata = dict(metadata)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._start()

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Iterator[sqlite3.Connection]:
        """Run the ``with`` block as a transaction: commit at its end, roll back after an error."""
        self._expect_own()
        with self._lock, self._write_lock() if writes else nullcontext(), _transaction(self._connection, writes=writes):
            yield self._connection

    def shred(self) -> bool:
        """Empty the log, which may contain deleted data; return False if readers prevent it for `WAIT` seconds."""
        self._expect_own()
        until = time.monotonic() + WAIT
        with self._lock, self._write_lock():
            while self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
                if time.monotonic() > until:
                    return False
                time.sleep(0.01)  # SQLite itself waits for readers, but not for a concurrent checkpoint
        return True

    def close(self) -> None:
        """Close the file; the last connection removes the log. Does nothing in a forked process."""
        self._close()

    def _expect_own(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                f"{self.path} was opened in process {self._pid}, and this is process {os.getpid()}, which was forked "
                "from it; open the file again in this process."
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
            raise ValueError(f"{self.path} is not an SQLite file ({error}); give another path.") from error

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Wait for writers of other processes with a file lock, because SQLite polls and can starve them."""
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
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open, too

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")
        if _is_empty(connection):
            with _transaction(connection):
                if _is_empty(connection):  # no other process has created it meanwhile
                    self._create(connection)
        self._check(connection)
        _log_ahead(connection)

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"pragma application_id = {APPLICATION}")
        connection.execute("create table facts (name text primary key, value text not null)")
        connection.executemany("insert into facts values (?, ?)", self._metadata.items())
        for statement in self._schema.split(";"):
            connection.execute(statement)

    def _check(self, connection: sqlite3.Connection) -> None:
        if connection.execute("pragma application_id").fetchone()[0] != APPLICATION:
            raise ValueError(f"{self.path} is an SQLite file of another program; give another path.")
        written = dict(connection.execute("select name, value from facts"))
        for name, value in self._metadata.items():
            if written.get(name) != value:
                raise ValueError(
                    f"{self.path} was made with the {name} {written.get(name)!r}, and this is {value!r}; "
                    "give that one, or another path."
                )


def _make_private(path: Path) -> None:
    """Create the file, readable by its owner only, if it does not exist; SQLite gives its log the same permissions."""
    with suppress(OSError):  # the file exists, or SQLite will report why it cannot be created
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
        if connection.in_transaction:  # after some errors SQLite has already rolled back
            connection.execute("rollback")
        raise


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log; retry, because SQLite refuses at once while others have the file open."""
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
