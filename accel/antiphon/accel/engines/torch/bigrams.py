"""What a model says after each single token: drafts for contexts that no text has met yet. Knows no texts.

It is asked once, in a few seconds, and kept in a file in the user's cache. A file that cannot be read is made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from platformdirs import user_cache_dir
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import ROOT, Draft
from antiphon.accel.drafting.drafters.runners_up import Bigrams, K
from antiphon.accel.engines.torch.best import best
from antiphon.accel.engines.torch.self_test import FAILURES
from antiphon.accel.files import write

TOKENS = 8192
"""After so many tokens the model is asked at most, the lowest ids first: tokenizers number frequent tokens low."""

SECONDS = 3.0
"""No further forward begins that would end later than this; a large model on a CPU tells of fewer tokens."""

FIRST, ROWS = 16, 128
"""Tokens of the first forward, and of the largest: every one has twice as many as the one before."""

BELIEVED = 0.6
"""The factor by which the model's probabilities after a single token are discounted: 0.35 to 0.7 made no difference to
SmolLM2's chats."""

Forward = Callable[[Draft, int], Tensor]
"""One forward of a fresh text: a root token, and a draft below it; the logits have shape (1 + rows, vocab)."""


def find(model: PreTrainedModel, forward: Forward, folder: Path | None = None) -> Bigrams | None:
    """The model's best tokens after each frequent token, kept in ``folder`` (the user's cache) for the next process.

    None where it cannot be asked: nothing but speed depends on it.
    """
    with suppress(*FAILURES):
        return _found(model, forward, folder or Path(user_cache_dir("antiphon")) / "bigrams")
    return None


def _found(model: PreTrainedModel, forward: Forward, folder: Path) -> Bigrams:
    path = folder / f"{_fingerprint(model)[:32]}.safetensors"
    bigrams = _read(path, _vocabulary(model))
    if bigrams is None:
        from safetensors.numpy import save

        bigrams = ask(model, forward)
        write(path, save({"tokens": bigrams.tokens, "chances": bigrams.chances}))
    return bigrams


@torch.no_grad()
def ask(model: PreTrainedModel, forward: Forward, *, seconds: float = SECONDS) -> Bigrams:
    """Ask the model about many tokens at once, for as long as there is time.

    They are siblings in a tree, below the token that begins texts, or where there is none the first of the vocabulary.
    """
    vocabulary = _vocabulary(model)
    begins = model.config.get_text_config(decoder=True).bos_token_id
    root = begins if isinstance(begins, int) and 0 <= begins < vocabulary else 0
    tokens: list[NDArray[np.int32]] = []
    chances: list[NDArray[np.float32]] = []
    count = min(TOKENS, vocabulary)
    started, done, size, pace = perf_counter(), 0, FIRST, 0.0
    while done < count and (not done or perf_counter() - started + size * pace < seconds):
        before = perf_counter()
        asked = tuple(range(done, min(done + size, count)))
        draft = Draft(asked, (ROOT,) * len(asked), (1.0,) * len(asked))
        logits = forward(draft, root)[1:]
        most, shares = best(logits, K)
        tokens.append(most.cpu().numpy().astype(np.int32))
        shares = BELIEVED * shares / shares.sum(-1, keepdim=True).clamp_(min=1)
        chances.append(shares.nan_to_num_().cpu().numpy().astype(np.float32))
        done, size, pace = done + len(asked), min(2 * size, ROWS), (perf_counter() - before) / len(asked)
    return Bigrams(np.concatenate(tokens), np.concatenate(chances))


def _vocabulary(model: PreTrainedModel) -> int:
    size: int = model.config.get_text_config(decoder=True).vocab_size
    return size


def _fingerprint(model: PreTrainedModel) -> str:
    """A digest of the configuration, of where the model is, and of a few numbers of every parameter."""
    facts = f"{TOKENS} {K} {BELIEVED} {model.device} {model.config.to_json_string()}"
    digest = hashlib.sha256(facts.encode())
    for parameter in model.parameters():
        if not parameter.is_meta:
            numbers = parameter.detach().reshape(-1)
            digest.update(numbers[:: max(len(numbers) // 16, 1)].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path, vocabulary: int) -> Bigrams | None:
    """What is in the file, or None where there is none that is whole and of such a vocabulary."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    with suppress(OSError, SafetensorError, KeyError):
        arrays = load(path.read_bytes())
        tokens, chances = arrays["tokens"], arrays["chances"]
        is_whole = tokens.ndim == 2 and tokens.shape == chances.shape == (len(tokens), K) and len(tokens) > 0
        if is_whole and np.all((tokens >= 0) & (tokens < vocabulary)) and np.all((chances >= 0) & (chances <= 1)):
            return Bigrams(tokens, chances)
    return None
