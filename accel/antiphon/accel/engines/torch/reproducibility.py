"""Check that a row's rounding does not depend on the other rows of its forward pass.

If the check passes, decoding can be reproducible: with exact attention and forward passes of one
fixed shape, the output does not depend on the draft, even in half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Tokens
from antiphon.accel.engines.torch.attention import EXACT, implementation_of
from antiphon.accel.engines.torch.cache_kinds import only_appends
from antiphon.accel.engines.torch.self_test import random_tokens
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.traits import Traits

SHAPE = Draft((0,) * 6, (ROOT, ROOT, 1, 1, ROOT, 3), (1.0,) * 6)
PATH = (1, 3, 5)
"""A draft with branches, and the rows to keep: without the first row, and none adjacent."""

PREFIX_LENGTHS = (9, 50)


def check_cache(cache: Cache | None) -> None:
    """Raise an error if reproducible decoding does not support a cache.

    Raises:
        ValueError: The caller's cache does more than append tokens.
    """
    if cache is not None and not only_appends(cache):
        raise ValueError(f"Reproducible decoding needs a DynamicCache; past_key_values is a {type(cache).__name__}.")


def check_model(model: PreTrainedModel, find_traits: Callable[[], Traits]) -> None:
    """Check that no row's rounding depends on the other rows of its forward pass.

    A few tokens are decoded one by one, and again as a path of a draft tree. Both must give bitwise
    equal logits.

    Args:
        find_traits: Function that returns the model's traits under exact attention.

    Raises:
        ValueError: The model cannot be decoded reproducibly; the message has the reason.
    """
    name = type(model).__name__
    if implementation_of(model) != EXACT:
        raise ValueError(f"Reproducible decoding needs exact attention, and {name} does not accept it.")
    with torch.no_grad():
        # Exact attention raises an error here if it does not support the model.
        model(input_ids=torch.tensor([[0, 0]], device=model.device), use_cache=False)
    traits = find_traits()
    if traits.state_kinds:
        raise ValueError(
            f"Reproducible decoding needs layers that compute each row alone, and {name} keeps recurrent or "
            "convolutional state; on torch its text is reproducible without drafts (drafter='nothing')."
        )
    if traits.level != "tree":
        raise ValueError(
            f"Reproducible decoding verifies trees, which {name} cannot: {traits.reason}; on torch its "
            "text is reproducible without drafts (drafter='nothing')."
        )
    if not _rounds_alike(model, traits):
        raise ValueError(
            f"{name} in {model.dtype} on {model.device} rounds a row by the rows beside it, so its output would depend "
            "on the draft all the same; decode without reproducible."
        )


@torch.no_grad()
def _rounds_alike(model: PreTrainedModel, traits: Traits) -> bool:
    for seed, size in enumerate(PREFIX_LENGTHS):
        tokens = random_tokens(model, size + 1 + len(SHAPE) + 1, seed)
        if not torch.equal(*(decode(model, traits, tokens, size) for decode in (_decode_one_by_one, _decode_tree))):
            return False
    return True


def _decode_one_by_one(model: PreTrainedModel, traits: Traits, tokens: Tokens, size: int) -> Tensor:
    sequence = _prefilled(model, traits, tokens[:size])
    rows: list[Tensor] = []
    for token in [tokens[size], *(tokens[size + 1 + row] for row in PATH), tokens[-1]]:
        rows.append(sequence.forward([token], EMPTY))
        sequence.keep(())
    return torch.cat(rows)


def _decode_tree(model: PreTrainedModel, traits: Traits, tokens: Tokens, size: int) -> Tensor:
    sequence = _prefilled(model, traits, tokens[:size])
    logits = sequence.forward([tokens[size]], replace(SHAPE, tokens=tuple(tokens[size + 1 : -1])))
    sequence.keep(PATH)
    return torch.cat([logits[[row + 1 for row in (ROOT, *PATH)]], sequence.forward([tokens[-1]], EMPTY)])


def _prefilled(model: PreTrainedModel, traits: Traits, prompt: Tokens) -> TorchSequence:
    sequence = TorchSequence(model, traits, reproducible=True)
    sequence.prefill(prompt)
    sequence.keep(())
    return sequence
