"""Attention in which no row's rounding depends on the others: each is computed by itself, as a plain step would.

Knows masks, keys and values. A boolean mask is a tree's; a causal forward comes without one, or with numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

EXACT = "antiphon_exact"
"""The name under which transformers knows this attention, for `model.set_attn_implementation`."""

BIASES = ("softcap", "s_aux", "position_bias")
"""What some models add to their scores, and scaled-dot-product attention cannot."""

HALF = (torch.float16, torch.bfloat16)
"""The half precisions, in which sums of another order are often other numbers."""

Attention = tuple[Tensor, Tensor | None]


class _Here(local):
    """Which attention this thread's forward has been lent."""

    implementation: str | None = None


_here = _Here()


def exact_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Attention:
    """Attend row by row under a tree's mask, otherwise as "sdpa" does.

    ``query`` has shape (1, heads, rows, size), ``key`` and ``value`` (1, key heads, slots, size), and the boolean mask
    (1, 1, rows, slots), whose last slots are the rows themselves. Each row is one query over exactly the slots it
    sees, side by side in the order of their positions. A row that sees nothing is left at zero. The output has shape
    (1, rows, heads, size).

    Raises:
        ValueError: the model adds a bias to its scores, or several prompts are decoded at once.
    """
    if given := [name for name in BIASES if options.get(name) is not None]:
        raise ValueError(
            f"{type(module).__name__} adds {', '.join(given)} to its scores, which exact attention cannot."
        )
    sdpa: Callable[..., Attention] = AttentionInterface()["sdpa"]
    if attention_mask is None or attention_mask.dtype != torch.bool:
        return sdpa(module, query, key, value, attention_mask, **options)
    if query.shape[0] != 1:
        raise ValueError(f"Exact attention decodes one prompt at a time; it was given {query.shape[0]}.")
    output = query.new_zeros((1, query.shape[2], query.shape[1], value.shape[-1]))
    for row, (start, line) in enumerate(_seen(attention_mask[0, 0])):
        if line:
            slots = key.shape[2] - query.shape[2]
            keys, values = (_side_by_side(states, start, slots, line) for states in (key, value))
            output[:, row : row + 1], _ = sdpa(module, query[:, :, row : row + 1], keys, values, None, **options)
    return output, None


def _seen(mask: Tensor) -> list[tuple[int, list[int]]]:
    """For each row the first cached slot that it sees, and the rows that it sees; ``mask`` is (rows, slots)."""
    rows, slots = mask.shape
    cached = slots - rows
    starts = (cached - mask[:, :cached].sum(dim=-1)).tolist()  # what is seen of the cache is always its end
    return [
        (start, [other for other, is_seen in enumerate(line) if is_seen])
        for start, line in zip(starts, mask[:, cached:].tolist(), strict=True)
    ]


def _side_by_side(states: Tensor, start: int, slots: int, line: list[int]) -> Tensor:
    """The states that one row sees: a view where they lie side by side, otherwise a copy."""
    if line[-1] == len(line) - 1:
        return states[:, :, start : slots + len(line)]
    rows = states[:, :, slots:].index_select(2, torch.tensor(line, device=states.device))
    return torch.cat([states[:, :, start:slots], rows], dim=2)


def _causal_mask(*arguments: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor | None:
    """The mask of a causal forward: None, or a float mask to add. So a boolean mask is always that of a tree."""
    sees = sdpa_mask(*arguments, **options)
    if sees is None or not is_lent(EXACT):
        return sees
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)


def implementation_of(model: PreTrainedModel) -> str:
    """The attention implementation that the model has now; transformers offers no public name for it."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation or "eager")


@contextmanager
def attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Let the model attend by this implementation in here, and as before afterwards, for whoever holds its lock.

    Transformers looks at every module of the model, which takes up to a millisecond, and may leave it as it was.
    """
    before = implementation_of(model)
    if before == implementation:
        yield
        return
    model.set_attn_implementation(implementation)
    other, _here.implementation = _here.implementation, implementation
    try:
        yield
    finally:
        _here.implementation = other
        model.set_attn_implementation(before)


def accepts(model: PreTrainedModel, implementation: str) -> bool:
    """Whether the model lets itself be given this implementation at all."""
    with attending(model, implementation):
        return implementation_of(model) == implementation


@contextmanager
def lent(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """A cheaper `attending` for one forward (microseconds); `attending` must have set this implementation once before.

    Whoever lends holds the lock of the model's engine. A forward that another thread runs meanwhile, past that lock,
    is attended as "sdpa" does it, as ever.
    """
    config = model.config.get_text_config(decoder=True)
    before, config._attn_implementation = config._attn_implementation, implementation
    other, _here.implementation = _here.implementation, implementation
    try:
        yield
    finally:
        config._attn_implementation, _here.implementation = before, other


def is_lent(implementation: str) -> bool:
    """Whether this thread's forward has been lent this attention; True throughout the tracing of torch.compile."""
    return torch.compiler.is_compiling() or _here.implementation == implementation


AttentionInterface.register(EXACT, exact_attention)
AttentionMaskInterface.register(EXACT, _causal_mask)
