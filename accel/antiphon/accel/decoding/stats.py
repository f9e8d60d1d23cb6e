"""What decoding cost: one Step per forward, and their summary. Knows numbers only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Step:
    """One forward: what it emitted, what it verified and what it took (seconds).

    ``padded`` counts rows that made the forward cheaper by making it larger; they are not drafted. ``prefilled`` counts
    the tokens that it read because the cache did not hold them: those of a prompt, or of a text read anew.
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


@dataclass(frozen=True, slots=True)
class Summary:
    """A request in figures. The first step is the prefill: it reads the whole prompt and, but for drafts that begin
    there, emits one token.

    ``prefill_tokens`` counts what was read of the prompt: all of it, unless a cache held how it begins. Times are
    seconds; ``prefill_seconds`` is the first step's, ``seconds`` is all of them. ``weights`` is "int8" or "int4" where
    another model than the one that was loaded has spoken; see `DecodingOptions`.
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

    @property
    def tokens_per_step(self) -> float:
        """Tokens emitted per forward; 1.0 is plain decoding."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def rows_per_step(self) -> float:
        """Draft rows verified per forward, the root not counted."""
        return self.drafted / self.steps if self.steps else 0.0

    @property
    def draft_ms_per_step(self) -> float:
        """Milliseconds per step spent in the drafter."""
        return 1000 * self.draft_seconds / self.steps if self.steps else 0.0

    @property
    def acceptance(self) -> float:
        """The share of drafted rows that the model would have said itself."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All figures under their names, rounded for people and for JSON."""
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
    """The steps of one request, added up."""
    steps = list(steps)
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
    )
