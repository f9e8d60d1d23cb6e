"""Certificates of greedy outputs: the regret of every emitted token in one full forward pass. Independent of decoding.

In half precision, two decoders round differently, so they can emit different tokens. Each can still guarantee that
every token was the most likely one up to rounding. This module measures that for any decoder.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from antiphon.accel.engines.torch.attention import HALF_DTYPES
from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.text.completion import Completion
from antiphon.accel.text.messages import TokenizedPrompt, begin_answer

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
        regrets: The regret of each of them, in ulps of ``dtype``.
        prompt_tokens: Number of prompt tokens before them.
        dtype: The model's dtype.
        allowed: Largest regret that rounding explains, in ulps.
    """

    tokens: tuple[int, ...]
    regrets: tuple[float, ...]
    prompt_tokens: int
    dtype: str
    allowed: float

    @property
    def worst(self) -> float:
        """The largest regret, in ulps; infinite if a token was impossible."""
        return max(self.regrets)

    @property
    def index(self) -> int:
        """Index in ``tokens`` of the first one with the largest regret."""
        return self.regrets.index(self.worst)

    @property
    def position(self) -> int:
        """Index of that token in the whole output, prompt included."""
        return self.prompt_tokens + self.index

    @property
    def token(self) -> int:
        """The id of that token."""
        return self.tokens[self.index]

    @property
    def share(self) -> float:
        """Share of the tokens whose regret is above zero, for any reason."""
        return sum(regret > 0 for regret in self.regrets) / len(self.regrets)

    @property
    def holds(self) -> bool:
        """Whether every token was the model's most likely one up to rounding."""
        return self.worst <= self.allowed

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and properties as JSON values; an infinite regret is None."""
        regrets = [regret if math.isfinite(regret) else None for regret in self.regrets]
        worst = self.worst if math.isfinite(self.worst) else None
        found = {"worst": worst, "position": self.position, "token": self.token, "share": round(self.share, 6)}
        return asdict(self) | {"regrets": regrets, "holds": self.holds} | found

    def __str__(self) -> str:
        tail = f", at token {self.index + 1} (id {self.token}); {self.share:.1%} of tokens above 0"
        return (
            f"The certificate {'holds' if self.holds else 'does not hold'}: {len(self.tokens)} tokens in {self.dtype}, "
            f"worst regret {self.worst:.3g} ulp of {self.allowed:g} allowed{tail if self.worst else ''}."
        )


@torch.no_grad()
def certify(
    model: PreTrainedModel,
    output: Tensor | Sequence[int],
    prompt_length: int,
    *,
    attention_mask: Tensor | None = None,
    logits_processor: LogitsProcessorList | None = None,
    ulps: float | None = None,
) -> Certificate:
    """Measure how far each token of a greedy output was from the model's most likely one, in one full forward pass.

    For each emitted token, let ``l`` be the float32 logits at its position, and ``s`` the scores after the processors;
    without processors ``s = l``. Then

        regret = (max(s) - s[token]) / ulp,    ulp = eps * 2 ** floor(log2(max(1, abs(max(l)))))

    where ``eps`` is the distance from 1 to the next number in the model's dtype (2**-7 in bfloat16, 2**-10 in float16,
    2**-23 in float32). The ulp is the spacing of the dtype's numbers at the size of the top logit, and not below 1,
    because the noise of a logit does not vanish if the logit happens to be near zero. A token whose score is -inf or
    NaN has an infinite regret. A wrong mask, position or cache costs hundreds of ulps.

    The logits take emitted tokens x vocabulary in the model's dtype, and at most 64 rows of float32 at a time. A
    sampled output cannot be certified: its tokens were drawn and need not be the most likely ones.

    Args:
        model: The causal model.
        output: Prompt and emitted token ids, as `generate` returns them: shape (1, length) or (length,).
        prompt_length: Number of prompt tokens.
        attention_mask: Hides left padding; shape (1, prompt_length) or (1, length).
        logits_processor: Called for each token in turn with the ids before it and float32 scores of shape (1, vocab).
        ulps: Allowed regret; None: 2 in half precision, 64 in single.

    Raises:
        ValueError: There is nothing to certify, several rows are given, ids are outside the vocabulary, the model is
            in training mode, or its rotary frequencies change while the text grows, so that no single forward pass can
            compute the logits of decoding.
    """
    ids = _row(model, output, prompt_length)
    mask = _whole_mask(attention_mask, ids)
    padding = int((mask[0] == 0).sum())
    dtype = model.dtype
    regrets: list[float] = []
    for first, last in token_ranges(model, prompt_length, ids.shape[1], padding):
        logits = last_logits(model, ids[:, : last - 1], mask[:, : last - 1], last - first)
        regrets += _regrets(logits, ids[:, :last], logits_processor, torch.finfo(dtype).eps)
    return Certificate(
        tokens=tuple(ids[0, prompt_length:].tolist()),
        regrets=tuple(regrets),
        prompt_tokens=prompt_length,
        dtype=str(dtype).removeprefix("torch."),
        allowed=(HALF_ULPS if dtype in HALF_DTYPES else SINGLE_ULPS) if ulps is None else ulps,
    )


def _row(model: PreTrainedModel, output: Tensor | Sequence[int], prompt_length: int) -> Tensor:
    """Return the output as ids of shape (1, length), after checking it."""
    if model.training:
        raise ValueError("The model is in training mode, where dropout changes its logits; call model.eval() first.")
    ids = torch.as_tensor(output, device=model.device)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or ids.shape[0] != 1:
        raise ValueError(f"output has the shape {tuple(ids.shape)}; give one row of token ids at a time.")
    if not 0 < prompt_length < ids.shape[1]:
        raise ValueError(
            f"prompt_length is {prompt_length} and output has {ids.shape[1]} tokens; give the prompt, of at least one "
            "token, and at least one token that was emitted after it."
        )
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    if bool(((ids < 0) | (ids >= vocabulary)).any()):
        raise ValueError(f"output has ids outside the model's vocabulary of {vocabulary}; use its own tokenizer.")
    return ids


def _whole_mask(attention_mask: Tensor | None, ids: Tensor) -> Tensor:
    mask = torch.ones_like(ids)
    if attention_mask is None:
        return mask
    given = attention_mask.to(ids.device).view(1, -1)
    if given.shape[1] > ids.shape[1] or bool((given[0].diff() < 0).any()) or not bool(given[0, -1]):
        raise ValueError("attention_mask hides more than left padding, or is longer than output.")
    mask[:, : given.shape[1]] = given
    return mask


def token_ranges(model: PreTrainedModel, first: int, length: int, padding: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of emitted tokens to compute separately: before and after rotary frequencies switch.

    Args:
        model: The causal model.
        first: Index of the first emitted token.
        length: Number of all tokens.
        padding: Number of left padding tokens.

    Raises:
        ValueError: Frequencies change while the cache keeps old ones, so that no forward pass computes these logits.
    """
    rope = declared_traits(model).rope
    if rope is None or length <= padding + rope.position:
        yield first, length
        return
    switch = padding + rope.position + 1  # the first token whose logits come from the changed frequencies
    if rope.dynamic or (first < switch < length and not rope.rebuilds):
        raise ValueError(
            f"{type(model).__name__} changes its rotary frequencies after {rope.position} tokens while its cache keeps "
            f"the old ones; only outputs up to there can be certified, and this one has {length - padding}."
        )
    if first < switch < length:
        yield first, switch
        first = switch
    yield first, length


def last_logits(model: PreTrainedModel, ids: Tensor, mask: Tensor, rows: int) -> Tensor:
    """Compute the logits after the last ids in one forward pass without a cache.

    Args:
        model: The causal model.
        ids: Token ids, shape (1, length).
        mask: Attention mask, shape (1, length).
        rows: Number of last ids whose logits are returned.

    Returns:
        Logits in the model's dtype, shape (rows, vocab).
    """
    offered: dict[str, Any] = {"attention_mask": mask, "use_cache": False, "logits_to_keep": rows}
    offered["position_ids"] = (mask.cumsum(dim=-1) - 1).clamp_(min=0)
    if bool(mask.all()):
        offered["attention_mask"] = None
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


def emitted_ids(
    prompt: TokenizedPrompt,
    completion: Completion | Sequence[int] | str,
    tokenizer: PreTrainedTokenizerBase,
) -> list[int]:
    """Return the token ids of a completion.

    Args:
        prompt: The prompt that it continues.
        completion: A completion, token ids, or a text, which is tokenized again: together with the prompt, or alone if
            that would change the prompt's tokens.
        tokenizer: The model's tokenizer.
    """
    if isinstance(completion, Completion):
        return list(completion.tokens)
    if not isinstance(completion, str):
        return list(completion)
    together = begin_answer(prompt, completion, tokenizer).tokens
    if together[: prompt.count] == prompt.tokens:
        return list(together[prompt.count :])
    return list(tokenizer.encode(completion, add_special_tokens=False))
