"""Embedders by name: which ones there are, and the one that suits this machine. Knows nothing of passages."""

from __future__ import annotations

import re
from pathlib import Path

from antiphon.retrieval.device import pick
from antiphon.retrieval.embed import Embedder, HashEmbedder

KNOWN = ("auto", "minilm", "bge-m3", "hash")
"""The names of embedders; besides them, any folder or hub name ``owner/model`` of sentence-transformers."""


def resolve(name: str, device: str | None = None) -> Embedder:
    """The embedder of that name, loaded. ``auto`` is BGE-M3 on a GPU and the embedded MiniLM on a CPU.

    Raises:
        ValueError: no embedder has that name, or its files are damaged or cannot be had.
        ImportError: the package that holds it is not installed; says the command.
    """
    if name == "hash":
        return HashEmbedder()
    if name == "auto":
        device = pick(device)
        name = "minilm" if device == "cpu" else "bge-m3"
    if name == "minilm":
        from antiphon.retrieval.minilm import MiniLMEmbedder

        return MiniLMEmbedder(device)
    if name == "bge-m3" or (name and Path(name).is_dir()) or re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        from antiphon.retrieval.sentence_transformer import SentenceTransformerEmbedder

        return SentenceTransformerEmbedder(name, device=device)
    raise ValueError(
        f"No embedder is named {name!r}; known are {', '.join(KNOWN)}, a folder, or a model of the hub as owner/model."
    )
