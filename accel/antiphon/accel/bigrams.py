"""What a model says after each single token: drafts for contexts that no text has met yet. Knows no texts.

It is asked once, in a few seconds, and kept in a file in the user's cache. A file that cannot be read is made again,
one that cannot be written is done without.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from platformdirs import user_cache_dir
from transformers import PreTrainedModel

from antiphon.accel.best import best
from antiphon.accel.cache import CachedModel
from antiphon.accel.cost_store import write
from antiphon.accel.draft import ROOT, Draft
from antiphon.accel.drafters.runners_up import Bigrams, K
from antiphon.accel.probe import traits_of

TOKENS = 8192
"""After so many tokens the model is asked at most, the lowest ids first: tokenizers number frequent tokens low."""

SECONDS = 3.0
"""For so long it is asked at most; a large model on a CPU tells of fewer tokens."""

FIRST, ROWS = 16, 128
"""Tokens of the first forward, and of the largest: every one has twice as many as the one before."""

BELIEVED = 0.6
"""How often what it says there holds, of what it claims: 0.35 to 0.7 made no difference to SmolLM2's chats."""

_known: WeakKeyDictionary[PreTrainedModel, Bigrams | None] = WeakKeyDictionary()


def bigrams_of(model: PreTrainedModel) -> Bigrams | None:
    """The model's best tokens after each frequent token; None where no trees are verified, or in training.

    It is asked about many tokens at once, as siblings below the token that begins texts.
    """
    if model.training:
        return None
    if model not in _known:
        _known[model] = _found(model) if traits_of(model).level == "tree" else None
    return _known[model]


def _found(model: PreTrainedModel) -> Bigrams:
    path = Path(user_cache_dir("antiphon")) / "bigrams" / f"{_fingerprint(model)[:32]}.safetensors"
    bigrams = _read(path)
    if bigrams is None:
        from safetensors.numpy import save

        bigrams = ask(model)
        write(path, save({"tokens": bigrams.tokens, "chances": bigrams.chances}))
    return bigrams


@torch.no_grad()
def ask(model: PreTrainedModel) -> Bigrams:
    """Ask the model, for as long as there is time."""
    config = model.config.get_text_config(decoder=True)
    start = config.bos_token_id if isinstance(config.bos_token_id, int) else 0
    count = min(TOKENS, config.vocab_size)
    parts: list[tuple[NDArray[np.int32], NDArray[np.float32]]] = []
    started, done, size = perf_counter(), 0, FIRST
    while done < count and (not done or perf_counter() - started < SECONDS):
        asked = tuple(range(done, min(done + size, count)))
        draft = Draft(asked, (ROOT,) * len(asked), (1.0,) * len(asked))
        tokens, chances = best(CachedModel(model, traits_of(model)).forward((start,), draft)[1:], K)
        parts.append((tokens.cpu().numpy().astype(np.int32), (BELIEVED * chances).float().cpu().numpy()))
        done, size = done + len(asked), min(2 * size, ROWS)
    return Bigrams(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))


def _fingerprint(model: PreTrainedModel) -> str:
    """A digest of the configuration and of a few numbers of every parameter."""
    digest = hashlib.sha256(f"{TOKENS} {K} {BELIEVED} {model.config.to_json_string()}".encode())
    for parameter in model.parameters():
        if not parameter.is_meta:
            numbers = parameter.detach().reshape(-1)
            digest.update(numbers[:: max(len(numbers) // 16, 1)].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> Bigrams | None:
    """What is in the file, or None where there is none that is whole."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    with suppress(OSError, SafetensorError, KeyError):
        arrays = load(path.read_bytes())
        tokens, chances = arrays["tokens"], arrays["chances"]
        if tokens.shape == chances.shape == (len(tokens), K) and np.all((chances >= 0) & (chances <= 1)):
            return Bigrams(tokens, chances)
    return None
