"""One text whatever is drafted, in half precision too: every forward has one shape, and no row rounds by another.

Knows how to ask a model whether it can; the attention and the fixed shape themselves are in other rooms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Tokens
from antiphon.accel.engines.torch.attention import EXACT, attending, implementation_of, lent
from antiphon.accel.engines.torch.cache import CachedModel
from antiphon.accel.engines.torch.growing import GrowingLayer
from antiphon.accel.engines.torch.probe import traits_of
from antiphon.accel.engines.torch.traits import TREE_LAYERS, Traits

if TYPE_CHECKING:
    from antiphon.accel.decoding.stats import Step

GRAIN = 8
"""Forwards are filled up to a multiple of so many rows."""

STEADY_ROWS = 32
"""The largest draft where forwards have one shape and nothing else is asked for."""

SHAPE = Draft((0,) * 6, (ROOT, ROOT, 1, 1, ROOT, 3), (1.0,) * 6)
PATH = (1, 3, 5)
"""A draft of two branches and a decoy, and the rows of it that are kept: never the first, never side by side."""

PREFIXES = (9, 50)

_proven: WeakKeyDictionary[PreTrainedModel, set[tuple[torch.dtype, str, int]]] = WeakKeyDictionary()


def bucket_of(deterministic: bool | int, rows: int | None) -> int:
    """How many rows every forward after the prefill has; 0 where that is left to the draft.

    ``True`` gives 1 + ``rows`` (32 where that is None), rounded up to a multiple of 8, a number gives itself: runs
    with different ``rows`` are then comparable too.

    Raises:
        ValueError: a draft of ``rows`` rows and its root would not fit.
    """
    if isinstance(deterministic, bool):
        largest = STEADY_ROWS if rows is None else rows
        return -(-(1 + largest) // GRAIN) * GRAIN if deterministic else 0
    if rows is None:
        return deterministic
    if deterministic <= rows:
        raise ValueError(f"deterministic is {deterministic}; a forward with {rows} draft rows has at least {rows + 1}.")
    return deterministic


def settled(model: PreTrainedModel, bucket: int, cache: Cache | None = None) -> Traits:
    """The traits that a request is decoded by, for forwards of ``bucket`` rows (0: of any number).

    With a bucket, a model that cannot keep the promise is refused: a probe decodes a few tokens one by one and again
    out of a tree, and their logits have to be the same to the bit. The verdict is kept per dtype, device and bucket.

    Raises:
        ValueError: the model, or the cache that it was given, cannot be decoded deterministically, and why.
    """
    if not bucket:
        return traits_of(model)
    if cache is not None and (
        getattr(cache, "offloading", False)
        or not all(type(layer).__name__ in TREE_LAYERS | {GrowingLayer.__name__} for layer in cache.layers)
    ):
        raise ValueError(f"Deterministic decoding needs a DynamicCache; past_key_values is a {type(cache).__name__}.")
    proven = _proven.setdefault(model, set())
    key = (model.dtype, str(model.device), bucket)
    with attending(model, EXACT):
        if key not in proven or model.training:
            _prove(model, bucket)
            proven.add(key)
        return traits_of(model)


def exactly(model: PreTrainedModel, steps: Iterator[Step]) -> Iterator[Step]:
    """The same steps, with the model attending exactly while one is made and as before in between."""
    while True:
        with lent(model, EXACT):
            step = next(steps, None)
        if step is None:
            return
        yield step


def _prove(model: PreTrainedModel, bucket: int) -> None:
    name = type(model).__name__
    if implementation_of(model) != EXACT:
        raise ValueError(f"Deterministic decoding needs exact attention, which {name} does not let itself be given.")
    with torch.no_grad():
        model(input_ids=torch.tensor([[0, 0]], device=model.device), use_cache=False)  # attention says what it cannot
    traits = traits_of(model)
    if traits.level != "tree":
        raise ValueError(f"Deterministic decoding verifies trees, which {name} cannot: {traits.reason}.")
    if not _rounds_alike(model, traits, bucket):
        raise ValueError(
            f"{name} in {model.dtype} on {model.device} rounds a row by the rows beside it, so its text would depend "
            "on the draft all the same; decode it without deterministic, and certify it."
        )


@torch.no_grad()
def _rounds_alike(model: PreTrainedModel, traits: Traits, bucket: int) -> bool:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    for seed, size in enumerate(PREFIXES):
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, vocabulary, (size + 1 + len(SHAPE) + 1,), generator=random).tolist()
        if not torch.equal(*(decode(model, traits, bucket, tokens, size) for decode in (_one_by_one, _from_a_tree))):
            return False
    return True


def _one_by_one(model: PreTrainedModel, traits: Traits, bucket: int, tokens: Tokens, size: int) -> Tensor:
    cached = _read(model, traits, bucket, tokens[:size])
    rows: list[Tensor] = []
    for token in [tokens[size], *(tokens[size + 1 + row] for row in PATH), tokens[-1]]:
        rows.append(cached.forward([token], EMPTY))
        cached.keep(())
    return torch.cat(rows)


def _from_a_tree(model: PreTrainedModel, traits: Traits, bucket: int, tokens: Tokens, size: int) -> Tensor:
    cached = _read(model, traits, bucket, tokens[:size])
    logits = cached.forward([tokens[size]], replace(SHAPE, tokens=tuple(tokens[size + 1 : -1])))
    cached.keep(PATH)
    return torch.cat([logits[[row + 1 for row in (ROOT, *PATH)]], cached.forward([tokens[-1]], EMPTY)])


def _read(model: PreTrainedModel, traits: Traits, bucket: int, prompt: Tokens) -> CachedModel:
    cached = CachedModel(model, traits, bucket=bucket)
    cached.prefill(prompt)
    cached.keep(())
    return cached
