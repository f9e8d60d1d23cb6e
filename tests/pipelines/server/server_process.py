"""A server of a tiny model in a separate process."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.load.servers import Command, RunningServer, serving


@contextmanager
def tiny_server(log: Path, **settings: Any) -> Iterator[RunningServer]:
    """Run a server until the ``with`` block exits."""
    arguments = [f"{name}={value}" for name, value in settings.items()]
    with serving(
        Command("tiny", (sys.executable, "-m", "tests.pipelines.server.tiny_server", *arguments)), log
    ) as server:
        yield server


def connect(url: str) -> socket.socket:
    """Open a TCP connection to a server."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    connection.settimeout(30)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    pieces = []
    while piece := connection.recv(2**16):
        pieces.append(piece)
    return b"".join(pieces)
