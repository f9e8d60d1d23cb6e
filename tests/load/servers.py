"""Servers as processes: started, waited for, weighed, killed. Knows no request."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

BIN = Path(sys.executable).parent
STARTING = 300
"""Seconds that a server has to come up; converting a model the first time is among them."""


@dataclass(frozen=True, slots=True)
class Command:
    """How a server is started, without its port; ``name`` is what tables call it."""

    name: str
    words: tuple[str, ...]

    @staticmethod
    def antiphon(model: str, options: Sequence[str] = ()) -> Command:
        """Ours, by the environment that runs this."""
        return Command(
            "antiphon serve", (sys.executable, "-m", "antiphon.pipelines.cli", "serve", "-m", model, *options)
        )

    @staticmethod
    def transformers(folder: str, *, is_batching: bool = True) -> Command:
        """Transformers', with continuous batching or without."""
        how = ("--continuous-batching",) if is_batching else ()
        name = "transformers serve" + (" --continuous-batching" if is_batching else "")
        return Command(name, (str(BIN / "transformers"), "serve", folder, "--device", "cpu", *how))


@dataclass(slots=True)
class RunningServer:
    """A server that answers."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def mebibytes(self) -> float:
        """What it and its children hold in memory."""
        parent = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (parent, *parent.children(recursive=True))) / 2**20

    def kill(self) -> None:
        """End it at once, without a word."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def started(command: Command, port: int, log: Path) -> RunningServer:
    """Start a server and wait until it answers; what it says goes to ``log``.

    Raises:
        RuntimeError: it ended, or it does not answer; the message has the end of what it said.
    """
    with log.open("ab") as said:
        words = (*command.words, "--port", str(port))
        process = subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True)
    server = RunningServer(f"http://127.0.0.1:{port}", process)
    until = time.monotonic() + STARTING
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{server.url}/health", timeout=5).is_success:
                return server
        except httpx.TransportError:
            time.sleep(0.05)
    if process.poll() is None:
        server.kill()
    raise RuntimeError(f"{command.name} did not come up: {last_said(log)}")


def last_said(log: Path) -> str:
    """The end of what a server has said."""
    return log.read_text(errors="replace").strip()[-2000:]


@contextmanager
def serving(command: Command, log: Path) -> Iterator[RunningServer]:
    """A server for as long as the context lasts."""
    server = started(command, free_port(), log)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
