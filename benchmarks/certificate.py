"""Certificates of greedy outputs: the regret of every emitted token in one full forward pass. Independent of decoding.

In half precision, two decoders round differently, so they can emit different tokens. Each can still guarantee that
every token was the most likely one up to rounding. This module measures that for any decoder.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from antiphon.accel.engines.torch.attention import HALF_DTYPES
from antiphon.accel.engines.torch.traits import declared_traits

HALF_ULPS = 2.0
SINGLE_ULPS = 64.0
"""Regret that rounding may cause: half precision accumulates in single precision and rounds the results."""

BLOCK = 64
"""Number of rows of logits that are converted to float32 at a time."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The regrets of an output; the certificate holds if none is above the allowed one. See `certify`.

    Attributes:
        tokens: The emitted tokens.
        regrets: The regret of each of them, in ulps of the model's dtype.
        allowed: Largest regret that rounding explains, in ulps.
    """

    tokens: tuple[int, ...]
    regrets: tuple[float, ...]
    allowed: float

    @property
    def worst(self) -> float:
        """The largest regret, in ulps; infinite if a token was impossible."""
        return max(self.regrets)

    @property
    def holds(self) -> bool:
        """Whether every token was the model's most likely one up to rounding."""
        return self.worst <= self.allowed


@torch.no_grad()
def certify(
    model: PreTrainedModel, output: Tensor, prompt_length: int, logits_processor: LogitsProcessorList | None = None
) -> Certificate:
    """Measure how far each token of a greedy output was from the model's most likely one, in one full forward pass.

    For each emitted token, let ``l`` be the float32 logits at its position, and ``s`` the scores after the processors;
    without processors ``s = l``. Then

        regret = (max(s) - s[token]) / ulp,    ulp = eps * 2 ** floor(log2(max(1, abs(max(l)))))

    where ``eps`` is the distance from 1 to the next number in the model's dtype (2**-7 in bfloat16, 2**-10 in float16,
    2**-23 in float32). The ulp is the spacing of the dtype's numbers at the size of the top logit, and not below 1,
    because the noise of a logit does not vanish if the logit happens to be near zero. A token whose score is -inf or
    NaN has an infinite regret. A wrong mask, position or cache costs hundreds of ulps.

    Args:
        model: The causal model.
        output: Prompt and emitted token ids, as `generate` returns them: shape (1, length).
        prompt_length: Number of prompt tokens.
        logits_processor: Called for each token in turn with the ids before it and float32 scores of shape (1, vocab).

    Raises:
        ValueError: The model's rotary frequencies change while the text grows, so that no single forward pass can
            compute the logits of decoding.
    """
    regrets: list[float] = []
    for first, last in _token_ranges(model, prompt_length, output.shape[1]):
        logits = _last_logits(model, output[:, : last - 1], last - first)
        regrets += _regrets(logits, output[:, :last], logits_processor, torch.finfo(model.dtype).eps)
    return Certificate(
        tokens=tuple(output[0, prompt_length:].tolist()),
        regrets=tuple(regrets),
        allowed=HALF_ULPS if model.dtype in HALF_DTYPES else SINGLE_ULPS,
    )


def _token_ranges(model: PreTrainedModel, first: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of emitted tokens to compute separately: before and after rotary frequencies switch."""
    rope = declared_traits(model).rope
    if rope is None or length <= rope.position:
        yield first, length
        return
    switch = rope.position + 1  # the first token whose logits come from the changed frequencies
    if rope.dynamic or (first < switch < length and not rope.rebuilds):
        raise ValueError(
            f"{type(model).__name__} changes its rotary frequencies after {rope.position} tokens while its cache keeps "
            f"the old ones; only outputs up to there can be certified, and this one has {length}."
        )
    if first < switch < length:
        yield first, switch
        first = switch
    yield first, length


def _last_logits(model: PreTrainedModel, ids: Tensor, rows: int) -> Tensor:
    """Return the logits after the last ``rows`` ids from one forward pass without a cache, shape (rows, vocab)."""
    offered: dict[str, Any] = {"use_cache": False, "logits_to_keep": rows}
    taken = inspect.signature(model.forward).parameters
    logits: Tensor = model(ids, **{name: value for name, value in offered.items() if name in taken}).logits
    return logits[0, -rows:]


def _regrets(logits: Tensor, ids: Tensor, processors: Any, eps: float) -> Iterator[float]:
    """Yield the regret of each emitted token, in order."""
    start = ids.shape[1] - len(logits)
    for offset in range(0, len(logits), BLOCK):
        raw = logits[offset : offset + BLOCK].float()
        top = raw.amax(dim=-1)
        scores = raw
        if processors:
            ends = range(start + offset, start + offset + len(raw))
            rows = zip(ends, raw, strict=True)
            scores = torch.cat([processors(ids[:, :end], row[None]) for end, row in rows])
        tokens = ids[0, start + offset :][: len(raw)]
        lost = scores.amax(dim=-1) - scores.gather(1, tokens[:, None])[:, 0]
        ulp = eps * (torch.frexp(top.abs().clamp(min=1)).exponent - 1).exp2()  # frexp: top = m * 2**e, m from 1/2 to 1
        yield from (lost / ulp).nan_to_num(nan=math.inf, posinf=math.inf).tolist()
