"""Describe a benchmark run (command, model, processor, versions) for stored results and for captions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from antiphon.accel.processor import processor_flags, processor_name

INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Instruction sets that decide how fast a processor multiplies matrices, as /proc/cpuinfo names them."""

Facts = Mapping[str, Any]


def run_facts(kind: str, name: str, model: Any, *, program: str = "antiphon") -> dict[str, Any]:
    """Return the facts of one benchmark run.

    Args:
        program: Program name at the start of the recorded command.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    return {
        "kind": kind,
        "command": command_line(program),
        "model": name,
        "dtype": dtype,
        **machine_facts(model.device),
    }


def command_line(program: str = "antiphon") -> str:
    """Return the command line of this process as a user would type it in a shell."""
    return f"{program} {shlex.join(sys.argv[1:])}".rstrip()


def machine_facts(device: Any) -> dict[str, Any]:
    """Return processor, GPU (if ``device`` is a GPU), instruction sets, number of threads and library versions."""
    import torch

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "processor": processor_name(),
        "units": instruction_sets(),
        "device": gpu or device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "antiphon": version("antiphon"),
    }


def instruction_sets() -> list[str]:
    """Return the entries of `INSTRUCTION_SETS` that the processor supports; empty if they are unknown."""
    available = processor_flags()
    return [name for name in INSTRUCTION_SETS if name in available]


def run_title(result: Facts) -> str:
    """Return the title of a speed result: model, dtype, samples and number of passages."""
    passages = {None: None, 0: "no passages"}.get(result["passages"], f"{result['passages']} passages")
    parts = [result["model"], result["dtype"], sample_set(result), passages]
    return ", ".join(part for part in parts if part)


def sample_set(result: Facts) -> str:
    """Return the name of the sample file of a result, with the task if only one task was measured."""
    return f"{result['file'].removesuffix('.jsonl')}{': ' + result['task'] if result['task'] else ''}"


def machine_caption(result: Facts) -> str:
    """Return one line that names the processor or GPU, the number of threads and the library versions."""
    units = f" ({', '.join(result['units'])})" if result["units"] else ""
    cpu = f"{result['processor']}{units}, {result['threads']} threads"
    where = cpu if result["device"] == "cpu" else device_name(result)
    return f"{where}; torch {result['torch']}, transformers {result['transformers']}"


def device_name(result: Facts) -> str:
    """Return the name of the processor or, for a run on a GPU, of the GPU."""
    return str(result["processor"] if result["device"] == "cpu" else result["device"])
