"""Statistics of decoding: one `Step` per forward pass, and their summary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one emitted token.

    Attributes:
        logprob: Natural logarithm of the token's probability.
        top: The most likely tokens with their log-probabilities, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One decoding step of one request.

    Attributes:
        tokens: The emitted tokens: the accepted tokens and the bonus token.
        drafted: Number of draft rows that were verified.
        accepted: Number of draft rows that were accepted.
        seconds: Duration of the step.
        draft_seconds: The drafter's part of ``seconds``.
        forward_seconds: The forward pass's part of ``seconds``.
        finish: Why generation stopped with this step; None if it continues.
        padded: Number of padding rows (added because they make the forward pass cheaper); not included in
            ``drafted``.
        prefilled: Number of prompt tokens that were computed because they were not in the KV cache.
            After an eviction, emitted tokens that are computed again are included.
        plain_seconds: Estimated seconds of this forward pass without draft rows, from the measured costs; 0: unknown.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    seconds: float
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    finish: FinishReason | None = None
    padded: int = 0
    prefilled: int = 0
    plain_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals over the steps of one request. The first step is the prefill; it emits one token unless it has a draft.

    Attributes:
        steps: Number of forward passes.
        drafted: Number of verified draft rows.
        prefill_seconds: Duration of the first step.
        draft_seconds: The drafter's part of ``seconds``.
        forward_seconds: The forward passes' part of ``seconds``.
        prefill_tokens: Number of prompt tokens that the model had to compute; tokens of a cached
            prefix are not counted.
        weights: "int8" or "int4" if compressed weights generated the text; see `DecodingOptions`.
        decoded_tokens: Number of tokens that the steps after the prefill emitted.
        plain_seconds: Estimated seconds of plain decoding for ``decoded_tokens`` tokens; 0:
            unknown.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    prefill_tokens: int = 0
    weights: str = ""
    decoded_tokens: int = 0
    plain_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second after the prefill; 0 without such tokens."""
        return self.decoded_tokens / self._decoding_seconds if self.decoded_tokens else 0.0

    @property
    def speedup(self) -> float:
        """Speed after the prefill as a multiple of plain decoding; 0 if unknown or without drafts."""
        return self.plain_seconds / self._decoding_seconds if self.plain_seconds and self.drafted else 0.0

    @property
    def _decoding_seconds(self) -> float:
        return max(self.seconds - self.prefill_seconds, 1e-9)

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per forward pass; 1.0 is plain decoding."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def rows_per_step(self) -> float:
        """Verified draft rows per forward pass, without the root."""
        return self.drafted / self.steps if self.steps else 0.0

    @property
    def draft_ms_per_step(self) -> float:
        """Milliseconds per step spent in the drafter."""
        return 1000 * self.draft_seconds / self.steps if self.steps else 0.0

    @property
    def acceptance(self) -> float:
        """The acceptance rate: accepted draft rows / verified draft rows."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name, rounded for display and for JSON."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "tokens_per_step": round(self.tokens_per_step, 3),
            "rows_per_step": round(self.rows_per_step, 2),
            "accepted": self.accepted,
            "acceptance": round(self.acceptance, 4),
            "draft_ms_per_step": round(self.draft_ms_per_step, 4),
            "prefill_tokens": self.prefill_tokens,
            "prefill_seconds": round(self.prefill_seconds, 4),
            "seconds": round(self.seconds, 4),
        } | ({"weights": self.weights} if self.weights else {})


def summarize(steps: Iterable[Step], weights: str = "") -> Summary:
    """Add up the steps of one request."""
    steps = list(steps)
    decoding = steps[1:]
    is_known = all(step.plain_seconds for step in decoding)
    return Summary(
        steps=len(steps),
        tokens=sum(len(step.tokens) for step in steps),
        drafted=sum(step.drafted for step in steps),
        accepted=sum(step.accepted for step in steps),
        seconds=sum(step.seconds for step in steps),
        prefill_seconds=steps[0].seconds if steps else 0.0,
        draft_seconds=sum(step.draft_seconds for step in steps),
        forward_seconds=sum(step.forward_seconds for step in steps),
        prefill_tokens=sum(step.prefilled for step in steps),
        weights=weights,
        decoded_tokens=sum(len(step.tokens) for step in decoding),
        plain_seconds=sum(len(step.tokens) * step.plain_seconds for step in decoding) if is_known else 0.0,
    )
