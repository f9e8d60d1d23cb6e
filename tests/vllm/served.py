"""A real `vllm serve` for tests: started, waited for, asked for its counters, and ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
START = 800.0
"""Seconds that a server may take to start: some 20 on two idle cores, minutes on busy ones."""

# One thread that does not spin while it waits: tests share two cores with whatever else runs.
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "KMP_BLOCKTIME": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Served:
    """A server that was started: address, log, the file in which a watched proposer notes what is wrong, process."""

    url: str
    log: Path
    watch: Path
    process: subprocess.Popen[bytes]

    def wait(self) -> Served:
        """Itself, once it answers.

        Raises:
            RuntimeError: it did not start; the end of its log is on standard error.
        """
        end = time.monotonic() + START
        while time.monotonic() < end and self.process.poll() is None:
            with suppress(URLError, OSError), urlopen(f"{self.url.removesuffix('/v1')}/health", timeout=5):
                return self
            time.sleep(1)
        print(self.log.read_text(encoding="utf-8", errors="replace")[-4000:], file=sys.stderr)  # noqa: T201
        raise RuntimeError("vllm serve did not start; the end of its log is on standard error.")

    def counter(self, name: str) -> float:
        """The sum of a counter of the server's metrics."""
        with urlopen(f"{self.url.removesuffix('/v1')}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}\{{.*\}} (\S+)$", text, re.MULTILINE))


@contextmanager
def serve(model: str, folder: Path, *options: str) -> Iterator[Served]:
    """`vllm serve` of a model in float32, which is starting, until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    log, watch = folder / "log", folder / "watch"
    with _own_port() as port:
        fixed = ("--served-model-name", "smollm2", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")
        spread = ("--max-num-seqs", "16", "--gpu-memory-utilization", "0.3", "--port", str(port), "--host", "127.0.0.1")
        command = [os.environ["ANTIPHON_VLLM"], "serve", model, *fixed, *spread, *options]
        environment = os.environ | QUIET | {"PYTHONPATH": str(ROOT), "ANTIPHON_WATCH": str(watch)}
        with log.open("wb") as file, _group(command, env=environment, stdout=file, cwd=folder) as process:
            yield Served(f"http://127.0.0.1:{port}/v1", log, watch, process)


@contextmanager
def _own_port() -> Iterator[int]:
    """A port that nobody else is given until the block ends: bound here, free for servers that reuse addresses."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def _group(command: list[str], **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, and all that it has started with it."""
    process = subprocess.Popen(command, stderr=subprocess.STDOUT, start_new_session=True, **more)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
