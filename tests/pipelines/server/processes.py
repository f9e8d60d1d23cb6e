"""The server of a tiny model as a process of its own, as clients meet it."""

from __future__ import annotations

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
    """A server with these settings, ``drain`` among them, while the block runs; what it says goes to ``log``."""
    words = [f"{name}={number}" for name, number in settings.items()]
    with serving(Command("tiny", (sys.executable, "-m", "tests.pipelines.server.tiny_server", *words)), log) as server:
        yield server


def connected(url: str) -> socket.socket:
    """A connection to a server."""
    place = urlsplit(url)
    connection = socket.create_connection((place.hostname, place.port), timeout=30)
    connection.settimeout(30)
    return connection


def heard(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    pieces = []
    while piece := connection.recv(2**16):
        pieces.append(piece)
    return b"".join(pieces)
