"""Start-up and memory of each program: a new process loads a model and generates one token.

``python -m benchmarks.start_up`` is that process. It imports only what its program needs.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROMPT = tuple(range(100, 116))
"""Token ids of the prompt: any will do."""

STARTS = 2
"""Number of processes of each program; the fastest start counts."""


def start_arguments(folder: str, model: PreTrainedModel) -> dict[str, dict[str, Any]]:
    """Return what the process of each installed program needs, by program; see `run_program`.

    Args:
        folder: Folder of the checkpoint.
        model: The model that was loaded from it, which is exported for OpenVINO GenAI if that is missing.
    """
    import torch

    threads = torch.get_num_threads()
    loaded = {"folder": folder, "dtype": str(model.dtype).removeprefix("torch."), "threads": threads}
    arguments: dict[str, dict[str, Any]] = {"transformers": loaded, "antiphon": loaded}
    if find_spec("openvino_genai") is not None:
        from benchmarks.openvino_genai import export_model

        exported = export_model(model, prompt_lookup=False)
        graph = {"graph": str(exported.graph), "options": dict(exported.options), "threads": threads}
        arguments["openvino-genai"] = graph
    return arguments


def measure_starts(arguments: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Start each program in a new process, `STARTS` times; return seconds to the first token and gigabytes of memory.

    The fastest start counts: before it, Python may still have to compile the imported packages.

    Memory is that of the process: its highest at any time, and afterwards without the mapped pages of files, which the
    system can drop. It is 0 on systems other than Linux.

    Args:
        arguments: What each process needs, by program, see `start_arguments`.

    Raises:
        RuntimeError: A process failed.
    """
    gc.collect()
    starts = {name: [_measure_start(name, given) for _ in range(STARTS)] for name, given in arguments.items()}
    return [{"program": name} | min(found, key=itemgetter("seconds")) for name, found in starts.items()]


def _measure_start(program: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, program, json.dumps(dict(arguments))]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as errors:  # a pipe that is not read would fill up
        started = perf_counter()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            seconds = perf_counter() - started
            rest = process.stdout.read()
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{program} did not start: {' '.join(errors.read().strip().splitlines()[-1:])}")
    return {"seconds": round(seconds, 2)} | {name: round(size, 2) for name, size in json.loads(rest).items()}


def run_program(program: str, arguments: Mapping[str, Any]) -> None:
    """Load a model, generate a token, print a line, and then the memory of this process as JSON.

    Args:
        program: "transformers", "antiphon" or "openvino-genai".
        arguments: ``folder`` and ``dtype`` for transformers and antiphon; ``graph`` and ``options`` (a dictionary) for
            openvino-genai; ``threads`` for all.
    """
    programs: dict[str, Callable[..., Any]] = {
        "transformers": _transformers,
        "openvino-genai": _genai,
        "antiphon": _antiphon,
    }
    kept = programs[program](**arguments)
    _send("first token")
    sleep(1)  # memory that is freed in the background
    _send(json.dumps(_memory()))
    del kept


def _send(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _transformers(folder: str, dtype: str, threads: int) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.generate(torch.tensor([PROMPT]), max_new_tokens=1, do_sample=False)
    return model


def _antiphon(folder: str, dtype: str, threads: int) -> Any:
    os.environ["OMP_NUM_THREADS"] = str(threads)

    from antiphon.accel import LanguageModel
    from antiphon.accel.text.messages import TokenizedPrompt

    model = LanguageModel.from_pretrained(folder, dtype=dtype, engine="openvino")
    model.generate(TokenizedPrompt("", PROMPT), max_new_tokens=1)
    return model


def _genai(graph: str, options: Mapping[str, Any], threads: int) -> Any:
    import numpy as np
    import openvino
    import openvino_genai

    xml, weights = Path(graph), np.memmap(Path(graph).with_suffix(".bin"), dtype=np.uint8, mode="c")
    with tempfile.TemporaryDirectory() as empty:
        tokenizer = openvino_genai.Tokenizer(empty)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.eos_token_id, config.stop_token_ids = 1, 0, {0}
    shared = openvino.Tensor(weights, shared_memory=True)
    chosen = {**options, "INFERENCE_NUM_THREADS": threads, "scheduler_config": openvino_genai.SchedulerConfig()}
    pipeline = openvino_genai.LLMPipeline(xml.read_text(encoding="utf-8"), shared, tokenizer, "CPU", **chosen)
    pipeline.generate(openvino.Tensor(np.array([PROMPT], dtype=np.int64)), config)
    return pipeline, weights


def _memory() -> dict[str, float]:
    """Return gigabytes: the peak, and what is resident now without mapped files."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return {"peak_gb": 0.0, "resident_gb": 0.0}
    lines = (line.split() for line in status.read_text(encoding="ascii").splitlines())
    sizes = {words[0]: 1024 * int(words[1]) / 1e9 for words in lines if words[-1] == "kB"}
    return {"peak_gb": sizes["VmHWM:"], "resident_gb": sizes["RssAnon:"] + sizes["RssShmem:"]}


def main(arguments: Sequence[str]) -> None:
    """Run the program that the command line names."""
    run_program(arguments[0], json.loads(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
