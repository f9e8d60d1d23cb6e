"""A real `vllm serve` process for tests."""

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

import openai

ROOT = Path(__file__).parents[2]
START_TIMEOUT = 800.0
"""Seconds allowed for the start: about 20 on two idle cores, minutes on busy ones."""

ACCEPTED, DRAFTED = "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"
PREEMPTED = "vllm:num_preemptions_total"
"""Names of vLLM's Prometheus counters."""

BLOCKS = ("--block-size", "32", "--num-gpu-blocks-override", "40")
"""Blocks of the KV cache: enough for sixteen requests of one block, so that some longer requests are preempted."""

# One compute thread that does not spin while it waits, because the tests share two cores with other processes.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "KMP_BLOCKTIME": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A started server.

    Attributes:
        url: Address of its API, ending in /v1.
        log: File with its output.
        violations: File to which `CheckedProposer` writes; missing if it found nothing.
        process: The server's process.
    """

    url: str
    log: Path
    violations: Path
    process: subprocess.Popen[bytes]

    def wait_until_ready(self) -> Server:
        """Wait until the server answers and return it.

        Raises:
            RuntimeError: It did not start; the end of its log is on standard error.
        """
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and self.process.poll() is None:
            if self.is_healthy():
                return self
            time.sleep(1)
        print(self.log.read_text(encoding="utf-8", errors="replace")[-4000:], file=sys.stderr)  # noqa: T201
        raise RuntimeError("vllm serve did not start; the end of its log is on standard error.")

    def is_healthy(self) -> bool:
        """Return whether the server answers and its engine is alive."""
        with suppress(URLError, OSError), urlopen(f"{self.url.removesuffix('/v1')}/health", timeout=5):
            return True
        return False

    def counter(self, name: str) -> float:
        """Return the sum of a Prometheus counter over its labels."""
        with urlopen(f"{self.url.removesuffix('/v1')}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}\{{.*\}} (\S+)$", text, re.MULTILINE))


def openai_client(server: Server) -> openai.OpenAI:
    """Return OpenAI's client of a server."""
    return openai.OpenAI(base_url=server.url, api_key="none", timeout=900)


@contextmanager
def serve(model: str, folder: Path, *options: str) -> Iterator[Server]:
    """Start `vllm serve` in float32; end it when the ``with`` block exits. It is not ready when the block starts."""
    folder.mkdir(parents=True, exist_ok=True)
    log, violations = folder / "log", folder / "violations"
    with _reserved_port() as port:
        fixed = ("--served-model-name", "smollm2", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")
        limits = ("--max-num-seqs", "16", "--gpu-memory-utilization", "0.3", "--port", str(port), "--host", "127.0.0.1")
        command = [os.environ["ANTIPHON_VLLM"], "serve", model, *fixed, *limits, *options]
        paths = {"PYTHONPATH": str(ROOT), "ANTIPHON_VIOLATIONS": str(violations)}
        environment = os.environ | ENVIRONMENT | paths
        with log.open("wb") as file, _process_group(command, env=environment, stdout=file, cwd=folder) as process:
            yield Server(f"http://127.0.0.1:{port}/v1", log, violations, process)


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Reserve a port until the ``with`` block exits; only a server that sets SO_REUSEADDR can bind it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def _process_group(command: list[str], **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process; end it and all of its child processes when the ``with`` block exits."""
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
