"""One text whatever is drafted, in half precision too: every forward has one shape, and no row rounds by another.

Knows how to ask a model whether it can; the attention and the fixed shape themselves are in other rooms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Tokens
from antiphon.accel.engines.torch.attention import EXACT, implementation_of
from antiphon.accel.engines.torch.growing import GrowingLayer
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.traits import TREE_LAYERS, Traits

SHAPE = Draft((0,) * 6, (ROOT, ROOT, 1, 1, ROOT, 3), (1.0,) * 6)
PATH = (1, 3, 5)
"""A draft of two branches and a decoy, and the rows of it that are kept: never the first, never side by side."""

PREFIXES = (9, 50)


def check_cache(cache: Cache | None) -> None:
    """Refuse a cache of the caller's in which deterministic decoding cannot keep its promise.

    Raises:
        ValueError: it is none that grows.
    """
    if cache is not None and (
        getattr(cache, "offloading", False)
        or not all(type(layer).__name__ in TREE_LAYERS | {GrowingLayer.__name__} for layer in cache.layers)
    ):
        raise ValueError(f"Deterministic decoding needs a DynamicCache; past_key_values is a {type(cache).__name__}.")


def prove(model: PreTrainedModel, fixed_rows: int, find_traits: Callable[[], Traits]) -> None:
    """Find out whether no row of this model's forwards of so many rows rounds by the rows beside it.

    The model has been given exact attention. A few tokens are decoded one by one and again out of a tree, and their
    logits have to be the same to the bit.

    Raises:
        ValueError: the model cannot be decoded deterministically, and why.
    """
    name = type(model).__name__
    if implementation_of(model) != EXACT:
        raise ValueError(f"Deterministic decoding needs exact attention, which {name} does not let itself be given.")
    with torch.no_grad():
        model(input_ids=torch.tensor([[0, 0]], device=model.device), use_cache=False)  # attention says what it cannot
    traits = find_traits()
    if traits.level != "tree":
        raise ValueError(f"Deterministic decoding verifies trees, which {name} cannot: {traits.reason}.")
    if not _rounds_alike(model, traits, fixed_rows):
        raise ValueError(
            f"{name} in {model.dtype} on {model.device} rounds a row by the rows beside it, so its text would depend "
            "on the draft all the same; decode it without deterministic, and certify it."
        )


@torch.no_grad()
def _rounds_alike(model: PreTrainedModel, traits: Traits, fixed_rows: int) -> bool:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    for seed, size in enumerate(PREFIXES):
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, vocabulary, (size + 1 + len(SHAPE) + 1,), generator=random).tolist()
        if not torch.equal(
            *(decode(model, traits, fixed_rows, tokens, size) for decode in (_one_by_one, _from_a_tree))
        ):
            return False
    return True


def _one_by_one(model: PreTrainedModel, traits: Traits, fixed_rows: int, tokens: Tokens, size: int) -> Tensor:
    sequence = _read(model, traits, fixed_rows, tokens[:size])
    rows: list[Tensor] = []
    for token in [tokens[size], *(tokens[size + 1 + row] for row in PATH), tokens[-1]]:
        rows.append(sequence.forward([token], EMPTY))
        sequence.keep(())
    return torch.cat(rows)


def _from_a_tree(model: PreTrainedModel, traits: Traits, fixed_rows: int, tokens: Tokens, size: int) -> Tensor:
    sequence = _read(model, traits, fixed_rows, tokens[:size])
    logits = sequence.forward([tokens[size]], replace(SHAPE, tokens=tuple(tokens[size + 1 : -1])))
    sequence.keep(PATH)
    return torch.cat([logits[[row + 1 for row in (ROOT, *PATH)]], sequence.forward([tokens[-1]], EMPTY)])


def _read(model: PreTrainedModel, traits: Traits, fixed_rows: int, prompt: Tokens) -> TorchSequence:
    sequence = TorchSequence(model, traits, fixed_rows=fixed_rows)
    sequence.prefill(prompt)
    sequence.keep(())
    return sequence
