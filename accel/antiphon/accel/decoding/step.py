"""A request in the engine, and one step of it: draft, select rows, forward pass, verify, keep, observe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from time import perf_counter
from typing import Protocol

from antiphon.accel.decoding.stats import FinishReason, Step
from antiphon.accel.drafting.budget import AdaptiveBudget, Budget
from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Drafter, Logits, Tokens, pad
from antiphon.accel.drafting.tree import reorder_depth_first
from antiphon.accel.drafting.verify import verify
from antiphon.accel.engines.protocol import CachedSequence, Engine, SequenceInput, ThreadSettings


class TokenSampler(Protocol):
    """Chooses the model's next token from its logits."""

    @property
    def is_greedy(self) -> bool:
        """Whether the sampler only needs the most likely token of each row."""

    def bind(self, logits: Logits) -> Callable[[int], int]:
        """Return a function that maps a row of this forward pass to the model's next token after that row."""


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


DEFAULT_SETTINGS = ThreadSettings()


@dataclass(eq=False, slots=True)
class StepRequest:
    """A requested decoding step of one request, and its intermediate results.

    Attributes:
        settings: Settings of the calling thread.
        started_at: The `perf_counter` time in seconds at which the step was requested.
        guess: The drafter's proposal; None before the drafter has been called.
        is_first: Whether this is the first step of the request.
        prefilled: Number of prompt tokens that this step computes.
        draft: The draft tree; None until it is proposed. It is cut to the selected rows before the forward pass.
        draft_seconds: Time spent in the drafter before the forward pass.
        prefill_seconds: Time of prefilling the prompt up to its last token, if the first draft is below that token.
        forward_seconds: Time of the forward pass, shared or not.
        cached_tokens: Tokens in the KV cache before the forward pass.
        num_rows: Rows of the forward pass, including root and padding; 0 for a prefill.
        is_shared: Whether the forward pass was shared with other requests.
        is_abandoned: Whether the caller was interrupted and no longer waits.
        result: The finished step, or the exception of its drafter, sampler, stopping rule or forward pass.
        done: Set when there is a result.
    """

    request: Request
    settings: ThreadSettings = DEFAULT_SETTINGS
    started_at: float = field(default_factory=perf_counter)
    guess: Draft | None = None
    is_first: bool = False
    prefilled: int = 0
    draft: Draft | None = None
    draft_seconds: float = 0.0
    prefill_seconds: float = 0.0
    forward_seconds: float = 0.0
    cached_tokens: int = 0
    num_rows: int = 0
    is_shared: bool = False
    is_abandoned: bool = False
    result: Step | BaseException | None = None
    done: Event = field(default_factory=Event)

    @property
    def uncached_tokens(self) -> int:
        """Number of confirmed tokens that are not in the KV cache, at least one."""
        return len(self.request.output.tokens) - self.request.sequence.length

    def begin_forward(self) -> list[int]:
        """Return the pending tokens (the last ``uncached_tokens`` tokens), and store the size of the forward pass."""
        context, sequence = self.request.output.tokens, self.request.sequence
        self.cached_tokens = sequence.length
        pending = context[sequence.length :]
        if sequence.is_prefilled:
            self.num_rows = len(pending) + len(self.draft or EMPTY)
        else:
            self.num_rows, self.prefilled = 0, self.prefilled or len(pending)
        return pending


def decode_step(engine: Engine, step: StepRequest) -> Step:
    """Decode one step of one request. For several requests, see `Scheduler._run_batch`.

    The emitted tokens are always the model's own. Drafts only change how many tokens one forward
    pass confirms.

    Args:
        step: The requested step; its draft is proposed here unless it already has one.

    Returns:
        The step: at least one token, counts of rows, and times.
    """
    request = step.request
    sequence, output, budget = request.sequence, request.output, request.budget

    # 1. Draft: a tree of guessed tokens below the last confirmed token, from
    #    `drafter.propose(context, budget.num_draft_tokens)`.
    candidates = propose_draft(engine, step)

    def select_and_forward() -> tuple[Draft, Logits]:
        # The p >= 1 confirmed tokens that are not in the KV cache. Counted here, as other requests may evict the cache.
        pending = step.begin_forward()
        selected = padded = candidates
        if step.num_rows:
            # 2. Select the k rows that maximize tokens per second: (1 + sum of their chances) / cost(p + k).
            selected = reorder_depth_first(budget.trim(candidates, step.cached_tokens))
            padded = pad_draft(request, selected, pending[-1], budget.padding_rows(selected, step.cached_tokens))
            step.num_rows = len(pending) + len(padded)
        # 3. Forward pass over p + k rows; each draft row attends to the context and to its own ancestors.
        #    Logits (1 + k, vocab): after the last pending token (the root), and after every draft row.
        inputs = SequenceInput(sequence, pending, padded, request.prefill_chunk, needs_best=request.sampler.is_greedy)
        logits = forward_alone(engine, step, inputs)
        return selected, logits if padded is selected else logits.head(len(selected))

    step.draft, logits = engine.lock.run(select_and_forward)

    # 4. Verify: from the root down, draw the model's own next token and follow the child that guessed it.
    #    Accepts a path of a <= k rows and emits a + 1 tokens: the path's tokens and the bonus token.
    started = perf_counter()
    accepted = verify(step.draft, request.sampler.bind(logits), output.commit)

    # 5. Keep the pending tokens and the rows of that path in the KV cache; drop the other rows.
    sequence.keep(accepted.path)

    # 6. Observe: the budget learns costs and acceptance rates, the drafter learns from accepted rows and logits.
    return observe(step, accepted, logits, perf_counter() - started)


def guess_tokens(step: StepRequest) -> Draft:
    """Return the drafter's proposal for a step. In the first step, the drafter first reads the prompt."""
    if step.guess is None:
        request, started = step.request, perf_counter()
        context, step.is_first = request.output.tokens, not request.is_started
        if step.is_first:
            step.guess = request.drafter.begin(tuple(context), request.references) or EMPTY
            request.is_started = True
        else:
            step.guess = request.drafter.propose(context, request.budget.num_draft_tokens)
        step.draft_seconds = perf_counter() - started
    return step.guess


def propose_draft(engine: Engine, step: StepRequest) -> Draft:
    """Return the draft of a step, cut to the rows that its sequence can verify.

    The first forward pass is the prefill. This pass verifies a draft only if the drafter returns a
    draft at the start and the sequence supports it.

    Args:
        engine: Prefills the prompt up to its last token if there is a draft below that token.
    """
    if step.draft is not None:
        return step.draft
    request, draft = step.request, guess_tokens(step)
    context, sequence = request.output.tokens, request.sequence
    if step.is_first and not (draft and sequence.can_draft_at_prefill(context)):
        draft = EMPTY
    elif step.is_first:
        step.prefilled, started = step.uncached_tokens, perf_counter()
        _prefill(engine, request, context[sequence.length : -1])
        step.prefill_seconds = perf_counter() - started
    elif sequence.is_evicted(context):
        sequence.reset()
        step.prefilled, draft = len(context), EMPTY
    if draft:
        started = perf_counter()
        rows, depth = request.budget.num_draft_tokens + draft.num_probes, request.output.remaining_tokens - 1
        draft = sequence.fit(draft, rows, depth, step.uncached_tokens)
        step.draft_seconds += perf_counter() - started
    step.draft = draft
    return draft


def _prefill(engine: Engine, request: Request, tokens: Tokens) -> None:
    """Prefill the prompt up to its last token, so that the next forward pass can verify a draft below that token.

    A tree over the whole prompt would need a mask that is quadratic in its length.
    """
    inputs = SequenceInput(request.sequence, tokens, EMPTY, request.prefill_chunk)
    engine.lock.run(lambda: engine.forward([inputs]))
    request.sequence.keep(())


def forward_alone(engine: Engine, step: StepRequest, inputs: SequenceInput) -> Logits:
    """Run a forward pass of one request, and store its duration in the step. The caller holds the engine's lock.

    Args:
        inputs: Pending tokens and draft rows of the request's sequence.
    """
    started = perf_counter()
    try:
        [logits] = engine.forward([inputs])
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C: the request may be another thread's and continue
            inputs.sequence.reset()
        raise
    step.forward_seconds = perf_counter() - started
    return logits


def pad_draft(request: Request, draft: Draft, token: int, count: int) -> Draft:
    """Add padding rows to a draft if all of them fit. Some forward passes are cheaper with padding rows."""
    depth = request.output.remaining_tokens - 1
    if not count or not depth:
        return draft
    padded = request.sequence.fit(pad(draft, token, count), sys.maxsize, depth)
    return padded if len(padded) == len(draft) + count else draft


def observe(step: StepRequest, accepted: Accepted, logits: Logits, verify_seconds: float) -> Step:
    """Update budget and drafter with the result of verification, and return the finished step.

    Args:
        accepted: The accepted rows and the emitted tokens.
        logits: Logits after the root and after each selected row, shape (1 + rows, vocab).
        verify_seconds: Time of verification and of keeping the accepted rows.
    """
    request, draft, started = step.request, step.draft or EMPTY, perf_counter()
    plain = 0.0
    if step.num_rows and not step.is_shared:  # not after a prefill or a shared pass
        if isinstance(request.budget, AdaptiveBudget):
            plain = request.budget.plain_share(step.num_rows, step.cached_tokens)
        request.budget.observe_time(step.num_rows, step.cached_tokens, step.forward_seconds + verify_seconds)
    request.budget.observe_accepted(accepted)
    request.drafter.observe(draft, accepted, logits)
    request.last_step_at = ended = perf_counter()
    return Step(
        tokens=accepted.tokens,
        drafted=len(draft),
        accepted=len(accepted.path),
        seconds=ended - step.started_at,
        padded=0 if step.is_shared else max(step.num_rows - 1 - len(draft), 0),
        prefilled=step.prefilled,
        draft_seconds=step.draft_seconds + (ended - started),
        forward_seconds=step.prefill_seconds + step.forward_seconds,
        finish=request.output.finish,
        plain_seconds=plain * step.forward_seconds,
    )
