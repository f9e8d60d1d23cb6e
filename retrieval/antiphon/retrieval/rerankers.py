"""Rerankers by name: which ones there are, and the one that suits an embedder. Reranks nothing itself."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.cross_encoder import SHORT_NAMES, CrossEncoderReranker
from antiphon.retrieval.device import pick
from antiphon.retrieval.embed import Embedder, TokenEmbedder
from antiphon.retrieval.maxsim import MaxSim
from antiphon.retrieval.rerank import Reranker

KNOWN = ("auto", "maxsim", "bge-reranker-v2-m3")
"""The names of rerankers; besides them, any folder or hub name ``owner/model`` of a cross-encoder."""


def resolve_reranker(
    name: Reranker | str | None,
    embedder: Embedder,
    *,
    token_counts: NDArray[np.int64] | None = None,
    passages: int = 0,
    device: str | None = None,
) -> Reranker | None:
    """The reranker of that name; ``None`` is none.

    ``auto`` is bge-reranker-v2-m3 where BGE-M3 runs on a GPU, late interaction where the embedder offers token
    vectors, and otherwise none.

    Raises:
        ValueError: no reranker has that name, or it does not suit the embedder.
    """
    if not isinstance(name, str):
        return name
    if name == "auto":
        name = _suited(embedder, device)
    if name == "none":
        return None
    if name == "maxsim":
        if not isinstance(embedder, TokenEmbedder):
            raise ValueError(f"maxsim needs the vectors of single tokens, and the embedder {embedder.name} has none.")
        return MaxSim(embedder, token_counts, passages)
    if name in SHORT_NAMES or (name and Path(name).is_dir()) or re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return CrossEncoderReranker(name, device=device)
    raise ValueError(
        f"No reranker is named {name!r}; known are {', '.join(KNOWN)}, none, a folder, or a hub model as owner/model."
    )


def _suited(embedder: Embedder, device: str | None) -> str:
    if embedder.name in ("bge-m3", "BAAI/bge-m3") and pick(device) != "cpu":
        return "bge-reranker-v2-m3"
    return "maxsim" if isinstance(embedder, TokenEmbedder) else "none"
