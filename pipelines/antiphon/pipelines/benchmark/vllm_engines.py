"""Engines of vLLM in processes of their own, one for each way to draft, held side by side and asked in turn.

Knows how a worker is started and spoken to; what it decodes, and what its figures mean, is not known here.
"""

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

from antiphon.pipelines.benchmark.vllm_worker import MODULE, Decoded, EngineAnswer

PLAIN, OURS = "plain", "antiphon"

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
    }
)
"""What each method's name stands for, in vLLM's own words (``--speculative-config``); vLLM needs arctic-inference for
``suffix``, which also drafts from the answers of earlier requests."""

LAST = 2000
"""So many characters of a log's end are shown where an engine has ended."""


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """What all engines of a comparison have in common.

    ``python`` is the interpreter of the environment that vLLM and Antiphon are installed in, ``gigabytes`` what each
    engine keeps for keys and values, ``threads`` what it multiplies with (None: as many as vLLM takes). ``eager``
    leaves out torch.compile.
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

    def arguments(self, method: str) -> dict[str, Any]:
        """The engine's arguments. Prefixes are not kept: a prompt that comes again is read again."""
        common = {"model": self.model, "dtype": self.dtype, "max_model_len": self.window, "enforce_eager": self.eager}
        common |= {"max_num_seqs": self.most_at_once, "enable_prefix_caching": False, "gpu_memory_utilization": 0.3}
        speculation = SPECULATION[method]
        if speculation is None:
            return common
        return common | {"speculative_config": dict(speculation), "per_request_spec_decode_metrics": "summary"}


class VLLMEngine:
    """One engine: a process that is asked, and that answers."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.version = name, ""
        self._process, self._log = process, log

    def decode(self, jobs: Sequence[Mapping[str, Any]], limit: int) -> Decoded:
        """Decode all jobs at once; each has a ``prompt`` in token ids and ``sources`` for our proposer.

        Raises:
            ValueError: the engine has ended; says what it wrote last.
        """
        told = self.ask({"jobs": list(jobs), "limit": limit})
        return Decoded(**told | {"answers": [EngineAnswer(**each) for each in told["answers"]]})

    def ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line, and read the one that answers it.

        Raises:
            ValueError: the engine has ended; says what it wrote last.
        """
        asked, answered = self._pipes()
        line = b""
        try:
            asked.write(f"{json.dumps(what)}\n".encode())
            asked.flush()
            line = answered.readline()
        except BrokenPipeError:
            pass  # it has ended, as the empty line says
        if line:
            told: dict[str, Any] = json.loads(line)
            return told
        last = self._log.read_text(encoding="utf-8", errors="replace")[-LAST:].strip()
        raise ValueError(f"vLLM with {self.name} has ended; its last words were:\n{last}")

    def close(self) -> None:
        """End the process and wait for it."""
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
        asked, answered = self._process.stdin, self._process.stdout
        if asked is None or answered is None:
            raise ValueError(f"vLLM with {self.name} was started without pipes.")
        return asked, answered


@contextmanager
def opened_engines(methods: Sequence[str], settings: VLLMSettings) -> Iterator[list[VLLMEngine]]:
    """An engine for each method, started one after the other, all of them ended with the block.

    Raises:
        ValueError: a method is not known, or its engine does not start; says what it wrote last.
    """
    if unknown := [name for name in methods if name not in SPECULATION]:
        raise ValueError(f"There is no method {unknown[0]!r} here; give some of {', '.join(SPECULATION)}.")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = []
        for name in methods:
            engine = _started(name, settings, Path(folder, f"{name}.log"))
            stack.callback(engine.close)
            engine.version = str(engine.ask(settings.arguments(name))["version"])
            engines.append(engine)
        yield engines


def _started(name: str, settings: VLLMSettings, log: Path) -> VLLMEngine:
    own = {"VLLM_CPU_KVCACHE_SPACE": str(settings.gigabytes), "VLLM_NO_USAGE_STATS": "1"}
    if settings.threads is not None:
        own |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(settings.threads)}
    command = [settings.python, "-m", MODULE]
    environment = os.environ | own | settings.environment
    with log.open("wb") as written:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": written}
        return VLLMEngine(name, subprocess.Popen(command, env=environment, **pipes), log)
