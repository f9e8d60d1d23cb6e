"""What a server is: which models it has, how much they read, and where it takes references. Knows no prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from antiphon.accel.remote.client import Client
from antiphon.accel.remote.errors import ModelNotFoundError, RequestRejectedError, RemoteError

ServerKind = Literal["antiphon", "vllm", "other"]
"""Whose server it is, by what it says of its models (``owned_by``)."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is served: its name there, its context window in tokens if that is told, and by whom."""

    model: str
    kind: ServerKind
    context_window: int | None


def find_model(client: Client, model: str | None) -> ServedModel:
    """The server's model of this name, by default its first; the server is asked once.

    Raises:
        ModelNotFoundError: it has none of that name; the message names those that it has.
        RemoteError: it cannot be asked.
    """
    entries = client.models()
    for entry in entries:
        if model in (None, entry["id"]):
            return ServedModel(str(entry["id"]), _kind(entry), _window(entry))
    raise ModelNotFoundError(f"{client.base_url} has no model {model!r}; {_those(entries)}.")


def has_plugin(client: Client, model: str) -> bool:
    """Whether a vLLM drafts from references: with the plug-in it refuses one that is a number, and else ignores it."""
    asked = {"model": model, "prompt": ".", "max_tokens": 1, "vllm_xargs": {"references": 0}}
    try:
        client.post("/completions", asked)
    except RequestRejectedError:
        return True
    except RemoteError:
        return False
    return False


def _kind(entry: Mapping[str, Any]) -> ServerKind:
    owner = entry.get("owned_by")
    return "antiphon" if owner == "antiphon" else "vllm" if owner == "vllm" else "other"


def _window(entry: Mapping[str, Any]) -> int | None:
    window = entry.get("max_model_len", entry.get("context_window"))
    return window if isinstance(window, int) and window > 0 else None


def _those(entries: Sequence[Mapping[str, Any]]) -> str:
    return f"it has {', '.join(repr(entry['id']) for entry in entries)}" if entries else "it has no model at all"
