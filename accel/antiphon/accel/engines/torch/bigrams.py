"""Bigrams of a model: its best tokens after each frequent token, used as drafts for unknown contexts.

They are computed once per model, in a few seconds, and stored in the user's cache. A damaged file is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.drafting.draft import ROOT, Draft
from antiphon.accel.drafting.drafters.recycling_table import TOP_K, Bigrams
from antiphon.accel.files import write_cache_file

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

TOKENS = 8192
"""Maximum number of tokens with bigrams: those with the lowest ids, because tokenizers give frequent tokens low ids."""

SECONDS = 3.0
"""Time limit. Passes that would end later are not run, so a large model gets fewer bigrams."""

FIRST, ROWS = 16, 128
"""Number of tokens in the first forward pass, and maximum number. Each pass doubles the number."""

DISCOUNT = 0.6
"""Factor for all probabilities. Values from 0.35 to 0.7 were equally good for SmolLM2's chats."""

Forward = Callable[[Draft, int], "Tensor"]
"""Runs a forward pass of a new sequence over a draft and its root token; returns logits of shape (1 + rows, vocab)."""


@dataclass(frozen=True, slots=True)
class BigramFacts:
    """The facts about a model that `recorded_bigrams` needs.

    Attributes:
        file: Name of the file that stores the bigrams.
        root: The BOS token, or token 0 if the model has none.
    """

    file: str
    vocab_size: int
    root: int


def bigram_facts(model: PreTrainedModel) -> BigramFacts:
    """Return the name of a model's bigram file, the vocabulary size, and the root token."""
    config = model.config.get_text_config(decoder=True)
    bos, size = config.bos_token_id, config.vocab_size
    root = bos if isinstance(bos, int) and 0 <= bos < size else 0
    return BigramFacts(f"{_fingerprint(model)[:32]}.safetensors", size, root)


def load_or_compute_bigrams(model: PreTrainedModel, forward: Forward) -> Bigrams | None:
    """Return the bigrams of a model, or None if the model raises an error; see `recorded_bigrams`."""
    from antiphon.accel.engines.torch.self_test import FAILURES

    with suppress(*FAILURES):
        return recorded_bigrams(bigram_facts(model), forward)
    return None


def recorded_bigrams(facts: BigramFacts, forward: Forward) -> Bigrams | None:
    """Return a model's bigrams from their file; if there is no usable file, compute and store them.

    Args:
        folder: Folder of the file; None: the user's cache.

    Returns:
        The bigrams; None if the model raises an error, because only speed depends on them.
    """
    path = cache_folder() / "bigrams" / facts.file
    if (known := _read(path, facts.vocab_size)) is not None:
        return known
    from safetensors.numpy import save

    from antiphon.accel.engines.torch.self_test import FAILURES

    with suppress(*FAILURES):
        bigrams = compute_bigrams(facts, forward)
        write_cache_file(path, save({"tokens": bigrams.tokens, "chances": bigrams.chances}))
        return bigrams
    return None


def compute_bigrams(facts: BigramFacts, forward: Forward) -> Bigrams:
    """Compute bigrams for tokens 0, 1, 2, ... until the time is used up.

    Many tokens share a forward pass, as siblings in a draft tree below the root.

    Args:
        seconds: Time limit; the first forward pass is always run.
    """
    import torch

    from antiphon.accel.engines.torch.argmax import top_k

    tokens: list[NDArray[np.int32]] = []
    chances: list[NDArray[np.float32]] = []
    count = min(TOKENS, facts.vocab_size)
    started, done, size, seconds_per_token = perf_counter(), 0, FIRST, 0.0
    while done < count and (not done or perf_counter() - started + size * seconds_per_token < SECONDS):
        before = perf_counter()
        roots = tuple(range(done, min(done + size, count)))
        draft = Draft(roots, (ROOT,) * len(roots), (1.0,) * len(roots))
        with torch.no_grad():
            best, probabilities = top_k(forward(draft, facts.root)[1:], TOP_K)
        tokens.append(best.cpu().numpy().astype(np.int32))
        # `top_k` overestimates probabilities: the sum of a row can exceed 1.
        probabilities = DISCOUNT * probabilities / probabilities.sum(-1, keepdim=True).clamp_(min=1)
        chances.append(probabilities.nan_to_num_().cpu().numpy().astype(np.float32))
        done, size, seconds_per_token = done + len(roots), min(2 * size, ROWS), (perf_counter() - before) / len(roots)
    return Bigrams(np.concatenate(tokens), np.concatenate(chances))


def _fingerprint(model: PreTrainedModel) -> str:
    """Return a digest of the config, the device, and a few numbers of every parameter."""
    facts = f"{TOKENS} {TOP_K} {DISCOUNT} {model.device} {model.config.to_json_string()}"
    digest = hashlib.sha256(facts.encode())
    for parameter in model.parameters():
        if not parameter.is_meta:
            numbers = parameter.detach().reshape(-1)
            digest.update(numbers[:: max(len(numbers) // 16, 1)].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path, vocab_size: int) -> Bigrams | None:
    """Return the bigrams in a file; None if it is missing, damaged, or for another vocabulary size."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    with suppress(OSError, SafetensorError, KeyError):
        arrays = load(path.read_bytes())
        tokens, chances = arrays["tokens"], arrays["chances"]
        is_whole = tokens.ndim == 2 and tokens.shape == chances.shape == (len(tokens), TOP_K) and len(tokens) > 0
        if is_whole and np.all((tokens >= 0) & (tokens < vocab_size)) and np.all((chances >= 0) & (chances <= 1)):
            return Bigrams(tokens, chances)
    return None
