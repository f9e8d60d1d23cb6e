"""Engines of vLLM in processes of vLLM's own Python environment, for tests that need no server."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from tests.vllm.server import ENVIRONMENT, ROOT

PROGRAM = Path(__file__).with_name("engine.py")


def start(
    folder: Path, name: str, requests: list[dict[str, Any]], engine: dict[str, Any], **job: Any
) -> tuple[Any, Path]:
    """Start the program `tests/vllm/engine.py` and return its process and the file of its outputs."""
    fixed: dict[str, Any] = {
        "model": str(folder / "model"),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 256,
    }
    fixed |= {"gpu_memory_utilization": 0.1}
    given_environment = job.pop("environment", {})
    work = {"file": str(folder / f"{name}.json")} | job
    work |= {"engine": fixed | engine, "requests": requests}
    paths = {"PYTHONPATH": str(ROOT), "ANTIPHON_VIOLATIONS": str(folder / "violations")}
    environment = os.environ | ENVIRONMENT | paths | given_environment
    python = Path(os.environ["ANTIPHON_VLLM"]).with_name("python")
    with (folder / f"{name}.log").open("wb") as log, (folder / f"{name}.in").open("w+", encoding="utf-8") as given:
        json.dump(work, given)
        given.seek(0)
        process = subprocess.Popen([python, PROGRAM], stdin=given, stdout=log, stderr=log, env=environment)
    return process, folder / f"{name}.json"


def outputs(process: Any, file: Path) -> dict[str, Any]:
    """Return what the program wrote."""
    process.wait(800)
    log = file.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    assert process.returncode == 0, log[-4000:]
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


def greedy_answer(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """Return transformers' greedy answer to a prompt."""
    tokens = model.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False)  # type: ignore[operator]
    answer: list[int] = tokens[0, len(prompt) :].tolist()
    return answer
