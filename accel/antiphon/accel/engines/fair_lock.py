"""A lock for threads that take turns. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock, get_ident
from typing import TypeVar

Result = TypeVar("Result")


class FairLock:
    """A lock that goes to whoever waits for it before it goes again to the one who has just had it.

    Ctrl-C may come anywhere and leaves nothing taken. Taken again by the thread that holds it, it is held once more:
    a stream that is dropped may be closed there.
    """

    def __init__(self) -> None:
        self._line = RLock()  # held by the next in line; both say to `release` whether it is this thread that has them
        self._turn = RLock()
        self._holder = 0

    @property
    def is_held(self) -> bool:
        """Whether the calling thread holds it."""
        return self._holder == get_ident()

    def run(self, act: Callable[[], Result]) -> Result:
        """What ``act`` returns, called when this thread holds the lock."""
        thread = get_ident()
        if self._holder == thread:
            return act()
        # No `with`: signals are handled after every call, before the block is entered and on the way to `__exit__`.
        try:
            self._line.acquire()
            self._turn.acquire()
            self._holder = thread
            self._line.release()
            return act()
        finally:  # up to the first release there is no call, and so no signal
            if self._holder == thread:
                self._holder = 0
            try:
                self._turn.release()
            except RuntimeError:  # interrupted before it was this thread's turn
                pass
            finally:
                try:  # noqa: SIM105
                    self._line.release()
                except RuntimeError:  # as it should be: let go when the turn came
                    pass
