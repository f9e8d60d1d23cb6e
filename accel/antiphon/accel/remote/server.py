"""Asks a server for its models, their context windows, and whether it drafts from references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from antiphon.accel.remote.client import Client
from antiphon.accel.remote.errors import RemoteError

ServerKind = Literal["antiphon", "vllm", "other"]
"""Kind of a server, from the ``owned_by`` field of its models."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on a server.

    Attributes:
        name: Name of the model on the server.
        kind: Kind of the server.
        context_window: Maximum number of tokens; None if the server does not report it.
    """

    name: str
    kind: ServerKind
    context_window: int | None


def find_model(client: Client, name: str | None) -> ServedModel:
    """Return a model of the server, in one request.

    Args:
        name: Name of the model; None for the server's first model.

    Raises:
        RemoteError: The request failed, or the server has no model of this name.
    """
    entries = client.list_models()
    for entry in entries:
        if name in (None, entry["id"]):
            return ServedModel(str(entry["id"]), _kind(entry), _context_window(entry))
    raise RemoteError(f"{client.base_url} has no model {name!r}; {_list_names(entries)}.", 404)


def has_plugin(client: Client, model: str) -> bool:
    """Return whether a vLLM server has Antiphon's plug-in, by sending invalid references.

    The plug-in rejects references that are a number; servers without it ignore the field.
    """
    body = {"model": model, "prompt": ".", "max_tokens": 1, "vllm_xargs": {"references": 0}}
    try:
        client.post("/completions", body)
    except RemoteError as error:
        return error.status in (400, 422)
    return False


def _kind(entry: Mapping[str, Any]) -> ServerKind:
    owner = entry.get("owned_by")
    return "antiphon" if owner == "antiphon" else "vllm" if owner == "vllm" else "other"


def _context_window(entry: Mapping[str, Any]) -> int | None:
    window = entry.get("max_model_len", entry.get("context_window"))
    return window if isinstance(window, int) and window > 0 else None


def _list_names(entries: Sequence[Mapping[str, Any]]) -> str:
    return f"it has {', '.join(repr(entry['id']) for entry in entries)}" if entries else "it has no model at all"
