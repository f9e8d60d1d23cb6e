"""Load rerankers by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.remote.server import is_address
from antiphon.retrieval.embedders.by_name import chosen_embedder
from antiphon.retrieval.embedders.minilm import MiniLMEmbedder
from antiphon.retrieval.embedders.prompts import split_prompts
from antiphon.retrieval.embedders.protocol import Embedder, TokenEmbedder
from antiphon.retrieval.encoder_runtime.device import pick_device
from antiphon.retrieval.encoder_runtime.hub import HUB_NAMES
from antiphon.retrieval.rerankers.cross_encoder import CrossEncoderReranker
from antiphon.retrieval.rerankers.maxsim import MaxSimReranker
from antiphon.retrieval.rerankers.protocol import Reranker

_CROSS_ENCODER = "bge-reranker-v2-m3"

KNOWN = ("auto", "maxsim", _CROSS_ENCODER)
"""The names of rerankers. Other cross-encoders are named by a folder or as ``owner/model``."""


def load_reranker(
    name: Reranker | str | None,
    embedder: Embedder,
    *,
    token_counts: NDArray[np.int64] | None = None,
    passages: int = 0,
    device: str | None = None,
) -> Reranker | None:
    """Load the reranker with a name.

    Args:
        name: ``auto``, ``maxsim``, ``bge-reranker-v2-m3``, ``none``, a folder, or ``owner/model``
            on the hub. ``auto`` is bge-reranker-v2-m3 if the embedder is BGE-M3 on a GPU. Otherwise
            it is ``maxsim`` if the embedder has token vectors, else ``none``. A reranker or None is
            returned unchanged.
        token_counts: For ``maxsim``: for each token id, the number of passages that contain it.
        passages: For ``maxsim``: the number of passages in the index.
        device: Such as ``cuda`` or ``cpu``. None: a GPU if there is one.

    Raises:
        ValueError: The name is unknown, or the reranker does not work with the embedder.
    """
    if not isinstance(name, str):
        return name
    if name == "auto":
        plain = "maxsim" if isinstance(embedder, TokenEmbedder) else "none"
        name = _CROSS_ENCODER if _needs_cross_encoder(embedder.name, device) else plain
    if name == "none":
        return None
    if name == "maxsim":
        if not isinstance(embedder, TokenEmbedder):
            raise ValueError(f"maxsim needs the vectors of single tokens, and the embedder {embedder.name} has none.")
        return MaxSimReranker(embedder, token_counts, passages)
    if name == _CROSS_ENCODER or (name and Path(name).is_dir()) or re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return CrossEncoderReranker(name, device=device)
    raise ValueError(
        f"No reranker is named {name!r}; known are {', '.join(KNOWN)}, none, a folder, or a hub model as owner/model."
    )


def bundled_reranker() -> Reranker:
    """Return a reranker that needs no index and no download."""
    return MaxSimReranker(MiniLMEmbedder())


def hub_models(embedder: str, device: str | None = None) -> list[str]:
    """Return the hub names of the models that an index needs: its embedder and the default reranker.

    Bundled models and folders are left out.

    Args:
        device: Such as ``cuda`` or ``cpu``. None: a GPU if there is one.
    """
    name = chosen_embedder(embedder, device)
    plain, _ = split_prompts(name)
    names = [] if is_address(plain) else [HUB_NAMES.get(plain, plain)]
    if _needs_cross_encoder(name, device):
        names.append(HUB_NAMES[_CROSS_ENCODER])
    return [each for each in names if re.fullmatch(r"[\w.-]+/[\w.-]+", each) and not Path(each).is_dir()]


def _needs_cross_encoder(embedder: str, device: str | None) -> bool:
    plain, _ = split_prompts(embedder)
    return HUB_NAMES.get(plain, plain) == HUB_NAMES["bge-m3"] and pick_device(device) != "cpu"
