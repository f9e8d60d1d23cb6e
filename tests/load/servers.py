"""Server processes: start, wait until ready, measure memory, kill."""

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
STARTUP_TIMEOUT = 300
"""Seconds until a server must answer /health, including the first conversion of its model."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a server, without its port.

    Attributes:
        name: its name in the output.
        arguments: the command line.
    """

    name: str
    arguments: tuple[str, ...]

    @staticmethod
    def antiphon(model: str, options: Sequence[str] = ()) -> Command:
        """Return the command of `antiphon serve` in this environment.

        Args:
            model: the model.
            options: further options.
        """
        return Command(
            "antiphon serve", (sys.executable, "-m", "antiphon.pipelines.cli", "serve", "-m", model, *options)
        )

    @staticmethod
    def transformers(folder: str, *, is_batching: bool = True) -> Command:
        """Return the command of `transformers serve`.

        Args:
            folder: the model's folder.
            is_batching: use continuous batching.
        """
        batching = ("--continuous-batching",) if is_batching else ()
        name = "transformers serve" + (" --continuous-batching" if is_batching else "")
        return Command(name, (str(BIN / "transformers"), "serve", folder, "--device", "cpu", *batching))


@dataclass(slots=True)
class RunningServer:
    """A server that is ready.

    Attributes:
        url: its URL.
        process: its process.
    """

    url: str
    process: subprocess.Popen[bytes]

    @property
    def mebibytes(self) -> float:
        """Resident memory of the process and its children, in MiB."""
        parent = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (parent, *parent.children(recursive=True))) / 2**20

    def kill(self) -> None:
        """Kill the process group with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """Return a TCP port that is not in use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_server(command: Command, port: int, log: Path) -> RunningServer:
    """Start a server and wait until it is ready.

    Args:
        command: its command.
        port: its port.
        log: the file of its output.

    Raises:
        RuntimeError: it ended or does not answer; the message has the end of its output.
    """
    with log.open("ab") as output:
        arguments = (*command.arguments, "--port", str(port))
        process = subprocess.Popen(arguments, stdout=output, stderr=output, start_new_session=True)
    server = RunningServer(f"http://127.0.0.1:{port}", process)
    until = time.monotonic() + STARTUP_TIMEOUT
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{server.url}/health", timeout=5).is_success:
                return server
        except httpx.TransportError:
            time.sleep(0.05)
    if process.poll() is None:
        server.kill()
    raise RuntimeError(f"{command.name} did not start: {log_tail(log)}")


def log_tail(log: Path) -> str:
    """Return the end of a server's output."""
    return log.read_text(errors="replace").strip()[-2000:]


@contextmanager
def serving(command: Command, log: Path) -> Iterator[RunningServer]:
    """Run a server until the ``with`` block exits.

    Args:
        command: its command.
        log: the file of its output.
    """
    server = start_server(command, free_port(), log)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
