"""Language models that could write the answer: on a local server, or on the hub if they fit this machine's memory."""

from __future__ import annotations

from antiphon.accel.available_memory import available_memory
from antiphon.accel.remote.server import local_servers

HUB_MODELS = {
    "Qwen/Qwen3.5-4B": 4.7,
    "microsoft/Phi-4-mini-instruct": 3.8,
    "ibm-granite/granite-4.0-micro": 3.4,
    "HuggingFaceTB/SmolLM3-3B": 3.1,
    "google/gemma-4-E2B-it": 5.1,
    "Qwen/Qwen3.5-2B": 2.3,
    "ibm-granite/granite-4.0-1b": 1.6,
    "meta-llama/Llama-3.2-1B-Instruct": 1.2,
    "LiquidAI/LFM2.5-1.2B-Instruct": 1.2,
    "Qwen/Qwen3.5-0.8B": 0.9,
}
"""Instruct models of today that a CPU can run, the best first, with billions of parameters."""

_SHOWN = 3
_BYTES_PER_PARAMETER, _OVERHEAD = 2.2, 1e9


def suggested_models() -> str:
    """Return one line with models that could write answers, and the option for them; nothing is downloaded."""
    servers = local_servers()
    if servers:
        names = [f"{kind}/{name}" for kind, found in servers.items() for name in found[:_SHOWN]]
        return f"For a written answer, a server of this machine has a model: --model {' or '.join(names[:_SHOWN])}"
    memory = available_memory()
    need = {name: _BYTES_PER_PARAMETER * billions * 1e9 + _OVERHEAD for name, billions in HUB_MODELS.items()}
    fitting = [f"{name} ({need[name] / 1e9:.0f} GB of memory)" for name in need if need[name] < memory][:_SHOWN]
    if not fitting:
        return "For a written answer, start Ollama, LM Studio or llama-server on a larger machine: --model ADDRESS"
    return f"For a written answer, name a model, which is downloaded once: --model {' or '.join(fitting)}"
