"""Server processes: start, wait until ready, kill."""

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

STARTUP_TIMEOUT = 300
"""Seconds until a server must answer /health, including the first conversion of its model."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a server, without its port."""

    name: str
    arguments: tuple[str, ...]

    @staticmethod
    def antiphon(model: str, options: Sequence[str] = ()) -> Command:
        """Return the command of `antiphon serve` in this environment."""
        serve = (sys.executable, "-m", "antiphon.pipelines.cli", "serve", "-m", model)
        return Command("antiphon serve", (*serve, *options))


@dataclass(slots=True)
class RunningServer:
    """A server that is ready."""

    url: str
    process: subprocess.Popen[bytes]

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
    """Run a server until the ``with`` block exits; its output goes into a file."""
    server = start_server(command, free_port(), log)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
