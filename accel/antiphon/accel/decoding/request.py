"""The decoding state of one request. It does not depend on models or other requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.drafting.budget import Budget
from antiphon.accel.drafting.draft import Drafter, Logits, Tokens
from antiphon.accel.engines.protocol import CachedSequence


class TokenSampler(Protocol):
    """Chooses the model's next token from its logits."""

    @property
    def is_greedy(self) -> bool:
        """Whether the sampler only needs the most likely token of each row."""

    def bind(self, logits: Logits) -> Callable[[int], int]:
        """Return a function from a row of this forward pass to the model's next token after it."""


class Output(Protocol):
    """The tokens of a request, and whether it has finished."""

    @property
    def tokens(self) -> list[int]:
        """Prompt and emitted tokens."""

    @property
    def finish(self) -> FinishReason | None:
        """Why generation has stopped; None while it runs."""

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be emitted."""

    def commit(self, token: int) -> bool:
        """Append a token and return whether generation stops with it."""


@dataclass(eq=False, slots=True)
class Request:
    """The decoding state of one request.

    Attributes:
        sequence: The request's KV cache in the engine.
        drafter: Proposes the draft trees.
        sampler: Chooses the model's next token at each verified row.
        references: Token ids of the texts that drafts may be copied from.
        prefill_chunk: Maximum number of prompt tokens per forward pass; None: the engine's default.
        thread: Id of the thread that asked for the latest step.
        is_started: Whether the drafter has read the prompt.
        last_step_at: The `perf_counter` time in seconds at which the last step ended; 0 before the first.
        idle_seconds: Seconds from the end of the last step to the caller's request for the next
            step.
        must_run_alone: Whether the next forward pass must not be shared, because a shared one has failed.
    """

    sequence: CachedSequence
    drafter: Drafter
    sampler: TokenSampler
    output: Output
    budget: Budget
    references: Sequence[Tokens] = ()
    prefill_chunk: int | None = None
    thread: int = 0
    is_started: bool = False
    last_step_at: float = 0.0
    idle_seconds: float = 0.0
    must_run_alone: bool = False
