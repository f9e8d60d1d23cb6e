"""The fair lock: threads alternate, and Ctrl-C at any moment releases it."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from antiphon.accel.engines.fair_lock import FairLock
from tests.accel.test_language_model import PROMPT, forwards, tiny


class Interrupted:
    """Wraps a stream's method or lock: a call raises KeyboardInterrupt before the method runs, or right afterwards."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def __call__(self, *arguments: Any) -> None:
        if self.whole.__name__ == "_text_of":
            self.whole(*arguments)
        raise KeyboardInterrupt

    def run(self, act: Any) -> None:
        self.whole.run(act)
        raise KeyboardInterrupt


def test_threads_take_turns() -> None:
    streams = [tiny().stream(f"{PROMPT} {index}", drafter="nothing", max_new_tokens=80) for index in range(2)]
    together = Barrier(2)
    order: list[int] = []

    def read(index: int) -> None:
        together.wait()
        for _ in streams[index]:
            order.append(index)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, range(2)))
    first = order[-1] ^ 1  # the thread that ended first
    until = len(order) - order[::-1].index(first)
    assert order[:until].count(first ^ 1) > until / 8


INTERRUPTS = """
import signal
from random import Random
from threading import Thread
from antiphon.accel.engines.fair_lock import FairLock

turns, moments = FairLock(), Random(0)

def work():
    # Again each second: while another thread ends, Python can overlook that a signal has come, until the next one.
    signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 2e-4), 1.0)
    try:
        while True:
            turns.run(int)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(200):
    try:
        work()
    except KeyboardInterrupt:
        pass
    other = Thread(target=turns.run, args=(int,), daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive(), "the turn was left taken"
print("every turn was given back")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on Windows")
def test_an_interrupt_at_any_moment_releases_the_lock() -> None:
    """Runs in a separate process, because signals arrive in the main thread, where pytest runs."""
    run = subprocess.run([sys.executable, "-c", INTERRUPTS], capture_output=True, text=True, check=False, timeout=240)
    assert run.stdout == "every turn was given back\n", run.stderr


def test_the_lock_is_reentrant() -> None:
    turns, began, order = FairLock(), Event(), list[str]()

    def wait() -> None:
        began.set()
        turns.run(lambda: order.append("other"))

    other = Thread(target=wait, daemon=True)

    def outer() -> None:
        other.start()
        began.wait()
        other.join(0.2)  # the other thread waits for the lock now
        turns.run(lambda: order.append("inner"))
        order.append("outer")

    turns.run(outer)
    other.join(10)
    assert order == ["inner", "outer", "other"]


@pytest.mark.parametrize("moment", ["_read", "_end", "_lock"])
def test_an_interrupted_stream_ends_and_can_be_closed(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with forwards(tiny()) as seen:
        stream = tiny().stream(PROMPT, drafter="nothing", max_new_tokens=3)
        said = [next(stream), next(stream)]
        monkeypatch.setattr(stream, moment, Interrupted(getattr(stream, moment)))
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        monkeypatch.undo()
        assert list(stream) == []  # continuing would lose the interrupted tokens
        assert len(seen) == 3
    stream.close()
    completion = stream.completion
    assert completion.finish_reason == ("length" if moment == "_lock" else "cancelled")
    assert completion.text.startswith("".join(said))
    assert tiny().generate(PROMPT, max_new_tokens=3).text.startswith(completion.text)
