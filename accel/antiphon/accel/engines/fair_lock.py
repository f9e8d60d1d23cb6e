"""A fair, re-entrant lock for engines. This module knows nothing about models."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock, get_ident
from typing import TypeVar

Result = TypeVar("Result")


class FairLock:
    """A re-entrant lock. After a release, waiting threads get the lock before the releasing thread.

    Call only `run`, which releases the lock even if Ctrl-C interrupts the thread. The lock is
    re-entrant because the garbage collector may run code that needs the lock, such as the closing
    of a dropped stream, in the thread that holds the lock.
    """

    def __init__(self) -> None:
        # `_next` is held by the first waiting thread, `_lock` by the thread that runs. Both are RLocks because
        # `release` of an RLock fails in a thread that does not hold it.
        self._next = RLock()
        self._lock = RLock()
        self._holder = 0

    def run(self, function: Callable[[], Result]) -> Result:
        """Call a function while holding the lock, and return its result."""
        thread = get_ident()
        if self._holder == thread:
            return function()
        # No `with`: a signal may be handled after any call, even just before the block is entered.
        try:
            self._next.acquire()
            self._lock.acquire()
            self._holder = thread
            self._next.release()
            return function()
        finally:  # no signal handler can run before the first release, because no call precedes it
            if self._holder == thread:
                self._holder = 0
            try:
                self._lock.release()
            except RuntimeError:  # interrupted before this thread got the lock
                pass
            finally:
                try:  # noqa: SIM105
                    self._next.release()
                except RuntimeError:  # usually `_next` was released before `function` was called
                    pass
