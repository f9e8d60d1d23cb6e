"""Load embedders by name."""

from __future__ import annotations

import re
from pathlib import Path

from antiphon.accel.remote.server import is_address
from antiphon.retrieval.embedders.hash_embedder import HashEmbedder
from antiphon.retrieval.embedders.prompts import split_prompts
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.encoder_runtime.device import pick_device

KNOWN = ("auto", "minilm", "bge-m3", "hash")
"""The names of embedders. Other models are named by their folders or as ``owner/model``."""


def chosen_embedder(name: str, device: str | None = None) -> str:
    """Replace ``auto`` by the name of the default embedder; return other names unchanged.

    Args:
        device: Such as ``cuda`` or ``cpu``. None: a GPU if there is one.
    """
    if name != "auto":
        return name
    return "minilm" if pick_device(device) == "cpu" else "bge-m3"


def load_embedder(name: str, device: str | None = None) -> Embedder:
    """Load the embedder with a name.

    Args:
        name: ``auto`` (BGE-M3 on a GPU, the bundled MiniLM on a CPU), ``minilm``, ``bge-m3``, ``hash``, a folder,
            ``owner/model`` on the hub, or a model on a server: ``ollama/nomic-embed-text`` or an
            address. Prompts may follow any name but auto, minilm and hash; see `with_prompts`.
        device: Such as ``cuda`` or ``cpu``. None: a GPU if there is one.

    Raises:
        ValueError: The name is unknown, or the model is damaged or cannot be downloaded.
        ImportError: A package is missing; the message has the command.
        RemoteError: The server cannot be reached, or has no such model.
    """
    name = chosen_embedder(name, device)
    plain, prompts = (name, {}) if Path(name).is_dir() else split_prompts(name)
    if name == "hash":
        return HashEmbedder()
    if name == "minilm":
        from antiphon.retrieval.embedders.minilm import MiniLMEmbedder

        return MiniLMEmbedder(device)
    if is_address(plain):
        from antiphon.retrieval.embedders.remote_embedder import RemoteEmbedder

        return RemoteEmbedder(name)
    if plain == "bge-m3" or (plain and Path(plain).is_dir()) or re.fullmatch(r"[\w.-]+/[\w.-]+", plain):
        from antiphon.retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder

        query, document = prompts.get("query"), prompts.get("document")
        return SentenceTransformerEmbedder(plain, device=device, query_prompt=query, document_prompt=document)
    if prompts and plain in KNOWN:
        raise ValueError(f"The embedder {plain!r} takes no prompts; name a model of the hub, a folder or a server's.")
    raise ValueError(
        f"No embedder is named {name!r}; known are {', '.join(KNOWN)}, a folder, or a model of the hub as owner/model."
    )
