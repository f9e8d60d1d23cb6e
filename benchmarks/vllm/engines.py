"""Engines of vLLM, one process per drafting method, driven over pipes by lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from benchmarks.vllm.worker import Decoded, EngineAnswer

PLAIN, OURS = "plain", "antiphon"
HEAD, BOTH = "eagle", "antiphon-eagle"
"""Methods that draft with an EAGLE head: alone, and together with references."""

WORKER = Path(__file__).with_name("worker.py")
"""Program that vLLM's own Python interpreter runs."""

SPECULATION: Mapping[str, Mapping[str, Any] | None] = MappingProxyType(
    {
        PLAIN: None,
        "ngram-5": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
        "ngram-8": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
        "suffix": {"method": "suffix", "num_speculative_tokens": 16},
        OURS: {
            "method": "custom_class",
            "model": "antiphon.integrations.vllm.Proposer",
            "num_speculative_tokens": 16,
        },
        HEAD: {"method": "eagle", "num_speculative_tokens": 4},
        BOTH: {"method": "eagle", "num_speculative_tokens": 16, "disable_padded_drafter_batch": True},
    }
)
"""vLLM's ``--speculative-config`` of each method. ``suffix`` needs arctic-inference, and also drafts from answers of
earlier requests. The last two need the folder of an EAGLE head."""

HEAD_TOKENS = {"ANTIPHON_HEAD_TOKENS": "4"}
"""Environment of `BOTH`: number of tokens that the head drafts."""

LOG_TAIL = 2000
"""Characters of an engine's log that an error message shows."""


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """Settings shared by all engines of a comparison.

    Attributes:
        python: Python interpreter of the environment with vLLM and Antiphon.
        model: Model folder or hub name.
        dtype: Name of the dtype.
        window: Maximum tokens of a prompt and its output.
        most_at_once: Maximum number of concurrent requests.
        gigabytes: Size of each engine's KV cache.
        threads: Threads per engine; None for vLLM's choice.
        eager: Whether to leave out torch.compile.
        environment: Additional environment variables.
        head: Folder of the model's EAGLE head; needed by `HEAD` and `BOTH`.
    """

    python: str
    model: str
    dtype: str
    window: int
    most_at_once: int
    gigabytes: int = 1
    threads: int | None = None
    eager: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    head: str = ""

    def arguments(self, method: str) -> dict[str, Any]:
        """Return the engine's arguments. Prefix caching is off: a repeated prompt is processed again."""
        common = {"model": self.model, "dtype": self.dtype, "max_model_len": self.window, "enforce_eager": self.eager}
        common |= {"max_num_seqs": self.most_at_once, "enable_prefix_caching": False, "gpu_memory_utilization": 0.3}
        speculation = SPECULATION[method]
        if speculation is None:
            return common
        head = {"model": self.head} if method in (HEAD, BOTH) else {}
        return common | {"speculative_config": {**speculation, **head}, "per_request_spec_decode_metrics": "summary"}


class VLLMEngine:
    """One engine of vLLM in its own process.

    Args:
        name: Name of the drafting method.
        process: The worker process, with pipes.
        log: File of the worker's standard error.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.version = name, ""
        self._process, self._log = process, log

    def decode(self, jobs: Sequence[Mapping[str, Any]], limit: int) -> Decoded:
        """Decode all jobs at once.

        Args:
            jobs: For each request a ``prompt`` in token ids and ``sources`` for our proposer.
            limit: Maximum number of new tokens per request.

        Raises:
            ValueError: the engine has ended; the message has the end of its log.
        """
        reply = self.send({"jobs": list(jobs), "limit": limit})
        return Decoded(**reply | {"answers": [EngineAnswer(**each) for each in reply["answers"]]})

    def send(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the reply.

        Raises:
            ValueError: the engine has ended; the message has the end of its log.
        """
        requests, replies = self._pipes()
        line = b""
        try:
            requests.write(f"{json.dumps(message)}\n".encode())
            requests.flush()
            line = replies.readline()
        except BrokenPipeError:
            pass  # the process has ended, so there is no reply
        if line:
            reply: dict[str, Any] = json.loads(line)
            return reply
        tail = self._log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:].strip()
        raise ValueError(f"vLLM with {self.name} has ended; the end of its log is:\n{tail}")

    def close(self) -> None:
        """End the process and wait for its end."""
        for pipe in self._pipes():
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        requests, replies = self._process.stdin, self._process.stdout
        if requests is None or replies is None:
            raise ValueError(f"vLLM with {self.name} was started without pipes.")
        return requests, replies


@contextmanager
def open_engines(methods: Sequence[str], settings: VLLMSettings) -> Iterator[list[VLLMEngine]]:
    """Start an engine for each method, one after the other; end all of them when the ``with`` block exits.

    Args:
        methods: Names of `SPECULATION`.
        settings: Settings of all engines.

    Raises:
        ValueError: a method is unknown or needs a head, or an engine does not start; the message has the end of its
            log.
    """
    if unknown := [name for name in methods if name not in SPECULATION]:
        raise ValueError(f"There is no method {unknown[0]!r}; choose from {', '.join(SPECULATION)}.")
    if not settings.head and (headless := [name for name in methods if name in (HEAD, BOTH)]):
        raise ValueError(f"The method {headless[0]!r} needs an EAGLE head; give its folder.")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = []
        for name in methods:
            engine = _start(name, settings, Path(folder, f"{name}.log"))
            stack.callback(engine.close)
            engine.version = str(engine.send(settings.arguments(name))["version"])
            engines.append(engine)
        yield engines


def _start(name: str, settings: VLLMSettings, log: Path) -> VLLMEngine:
    own = {"VLLM_CPU_KVCACHE_SPACE": str(settings.gigabytes), "VLLM_NO_USAGE_STATS": "1"}
    own |= HEAD_TOKENS if name == BOTH else {}
    if settings.threads is not None:
        own |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(settings.threads)}
    # By path, because vLLM's environment may have another version of this package; -P keeps this folder off its path.
    command = [settings.python, "-P", str(WORKER)]
    environment = os.environ | own | settings.environment
    with log.open("wb") as written:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": written}
        return VLLMEngine(name, subprocess.Popen(command, env=environment, **pipes), log)
