"""The proposer that vLLM runs with ``"method": "custom_class"``: one drafter per running request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.draft import Draft, DrafterFactory
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch
from antiphon.accel.drafting.row_selection import ScoredDraft
from antiphon.integrations.vllm.admission import read_sources
from antiphon.integrations.vllm.batch import BatchRow
from antiphon.integrations.vllm.model_runner_v1 import patch_worker
from antiphon.integrations.vllm.request_drafter import RequestDrafter
from antiphon.integrations.vllm.step_times import StepTimes

log = logging.getLogger("vllm.antiphon")  # a child of vLLM's logger, so that vLLM formats and shows its lines


class Runner(Protocol):
    """The attributes of vLLM's Model Runner V1 that the proposer reads.

    Attributes:
        requests: State of every running or waiting request, by id.
        input_batch: The batch: ``req_ids`` and ``num_prompt_tokens`` of each row.
    """

    requests: Mapping[str, Any]
    input_batch: Any


@dataclass(frozen=True, slots=True)
class Chain:
    """A proposed draft of a request, before it is cut to the tokens that are worth their cost.

    Attributes:
        scored: The draft, a chain of tokens, with the acceptance chance of each token.
        take: Function that returns the first tokens of the draft, and records that they will be
            verified. Its arguments are the draft and the number of tokens.
    """

    scored: ScoredDraft
    take: Callable[[Draft, int], list[int]]


class Proposer:
    """Drafts for vLLM from each request's prompt, references, prediction and answer so far.

    Select it with
    ``{"method": "custom_class", "model": "antiphon.integrations.vllm.Proposer", "num_speculative_tokens": 16}``.
    Drafts never change the output. So an exception only makes the draft empty. ``failures`` counts
    the exceptions, and only the first one is logged. The state of a request is dropped when the
    request ends, and never used for another request.

    Args:
        patch: Called with vLLM's configuration; patches its model runner.
        make_drafter: Makes the drafter of a request; suffix matching by default.
    """

    def __init__(
        self,
        vllm_config: Any,
        *,
        patch: Callable[[Any], None] = patch_worker,
        make_drafter: DrafterFactory | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.num_draft_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self.vocab_size = int(vllm_config.model_config.get_vocab_size())
        self.failures = 0
        self.step_times = StepTimes()
        self.calibration = Calibration()
        self._make_drafter = make_drafter or partial(
            SuffixMatch, depth=self.num_draft_tokens, common=0, recycling=False, branching=False
        )
        self._requests: dict[str, RequestDrafter] = {}
        self._failed: dict[str, Any] = {}
        self._runner: Runner | None = None
        self._proposed_rows: dict[str, int] = {}
        self._scheduled_rows: Mapping[str, int] = {}
        self._clock, self._ended = clock, 0.0
        patch(vllm_config)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing; vLLM calls this to load a draft model."""

    def prepare_step(self, runner: Runner, scheduled: Mapping[str, int]) -> None:
        """Record the state of the batch, for the call of `propose` that follows.

        Args:
            scheduled: Number of rows of each request in the step that was just computed, by request id.
        """
        self._runner, self._scheduled_rows = runner, scheduled

    def propose(
        self, sampled_token_ids: Sequence[Sequence[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, **_: Any
    ) -> list[list[int]]:
        """Return the draft of each row of the batch: at most `num_draft_tokens` tokens, none if drafts save no time.

        Args:
            sampled_token_ids: Tokens that the step emitted for row i; empty during the row's
                prefill.
            num_tokens_no_spec: Number of tokens of prompt and answer of row i, shape (rows,).
            token_ids_cpu: Tokens of prompt and answer of row i, shape (rows, tokens).
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        runner = self._runner
        if runner is None:
            return drafts
        with self.guard():
            rows = batch_rows(runner, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            found = self.draft([*rows.values()], self._scheduled_rows, runner.requests)
            for index, draft in zip(rows, found, strict=True):
                drafts[index] = draft
        return drafts

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Count an exception as a failure and suppress it.

        The draft is then empty. Without this guard, an exception would end vLLM's engine.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._count_failure(error)
            self._proposed_rows = {}

    def draft(self, rows: Sequence[BatchRow], scheduled: Mapping[str, int], running: Container[str]) -> list[list[int]]:
        """Return the draft of each request, empty if no draft saves time.

        Args:
            scheduled: Number of rows of each request in the step that was just computed, by request id.
            running: Ids of all requests that have not ended; the state of all other requests is
                dropped.
        """
        return self._cut(rows, self._propose_chains(rows, scheduled, running))

    def _propose_chains(
        self, rows: Sequence[BatchRow], scheduled: Mapping[str, int], running: Container[str]
    ) -> dict[int, Chain]:
        """Give new tokens to each request's drafter; return the proposed chain of each row, by index."""
        if self._proposed_rows and self._proposed_rows == dict(scheduled):  # a step without prefill
            self.step_times.observe(sum(self._proposed_rows.values()), self._clock() - self._ended)
        self._proposed_rows = {}
        self._drop_ended(running)
        chains: dict[int, Chain] = {}
        for index, row in enumerate(rows):
            if self._failed.get(row.request_id) is row.owner:
                continue
            try:
                drafter = self._updated(row)
                chains[index] = Chain(drafter.propose(self._most(row)), drafter.take)
            except Exception as error:  # noqa: BLE001  # the other requests continue
                self._fail(row, error)
        return chains

    def _cut(self, rows: Sequence[BatchRow], chains: Mapping[int, Chain]) -> list[list[int]]:
        """Cut each chain to the tokens whose expected gain exceeds their cost in this batch; return all drafts."""
        drafts: list[list[int]] = [[] for _ in rows]
        scored = [chain.scored for chain in chains.values()]
        counts = self.step_times.allocate(scored, num_without_draft=len(rows) - len(chains))
        for (index, chain), kept in zip(chains.items(), counts, strict=True):
            drafts[index] = chain.take(chain.scored.draft, min(kept, self.num_draft_tokens))
        self._proposed_rows = {row.request_id: 1 + len(draft) for row, draft in zip(rows, drafts, strict=True)}
        self._ended = self._clock()
        return drafts

    def _most(self, row: BatchRow) -> int:
        """Return the maximum number of tokens of a request's next draft."""
        most = self.num_draft_tokens if row.max_draft_tokens is None else row.max_draft_tokens
        return min(most, self.num_draft_tokens)

    def _updated(self, row: BatchRow) -> RequestDrafter:
        """Return the request's drafter, created if needed and updated with all tokens."""
        known = self._requests.get(row.request_id)
        if known is None or known.owner is not row.owner or not _continues(known, row):
            sources = read_sources(row.extra_args)
            prompt = row.read(0, row.num_prompt_tokens)
            known = RequestDrafter(row.owner, self._make_drafter, prompt, sources, self.calibration, self.vocab_size)
            self._requests[row.request_id] = known
        known.observe(row.read(len(known.context), row.num_tokens))
        return known

    def _drop_ended(self, running: Container[str]) -> None:
        for held in (self._requests, self._failed):
            for request_id in [request_id for request_id in held if request_id not in running]:
                del held[request_id]

    def _fail(self, row: BatchRow, error: Exception) -> None:
        """Count an error, and stop drafting for this request."""
        self._requests.pop(row.request_id, None)
        self._failed[row.request_id] = row.owner
        self._count_failure(error)

    def _count_failure(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            log.error(
                "Antiphon: drafting failed, so this request gets no drafts; its output is not affected. Further "
                "failures are counted, not logged.",
                exc_info=error,
            )


def batch_rows(
    runner: Runner, sampled_token_ids: Sequence[Sequence[int]], num_tokens_no_spec: Any, token_ids_cpu: Any
) -> dict[int, BatchRow]:
    """Return the rows of Model Runner V1's batch that emitted tokens, by index.

    Args:
        sampled_token_ids: Tokens that the step emitted for row i; empty during the row's prefill.
        num_tokens_no_spec: Number of tokens of prompt and answer of row i, shape (rows,).
        token_ids_cpu: Tokens of prompt and answer of row i, shape (rows, tokens).
    """
    decoding = [index for index, emitted in enumerate(sampled_token_ids) if len(emitted)]
    return {index: _row(runner, index, int(num_tokens_no_spec[index]), token_ids_cpu[index]) for index in decoding}


def _row(runner: Runner, index: int, num_tokens: int, tokens: Any) -> BatchRow:
    """Return one row of the batch; ``tokens`` has shape (maximum length,)."""
    request_id = runner.input_batch.req_ids[index]
    owner = runner.requests[request_id]
    num_prompt_tokens = int(runner.input_batch.num_prompt_tokens[index])
    return BatchRow(
        request_id,
        owner,
        getattr(owner.sampling_params, "extra_args", None),
        num_prompt_tokens,
        num_tokens,
        lambda start, end: tokens[start:end].tolist(),
        _limit_by_min_tokens(owner.sampling_params, num_tokens - num_prompt_tokens),
    )


def _limit_by_min_tokens(parameters: Any, num_emitted: int) -> int | None:
    """Return the maximum draft length until a request has emitted its ``min_tokens`` tokens; None after that.

    Model Runner V1 forbids stop tokens in a step if fewer than ``min_tokens`` tokens precede the
    draft. If the draft exceeded ``min_tokens``, a stop token after it would be forbidden, too, and
    the text would continue.
    """
    min_tokens: int = getattr(parameters, "min_tokens", 0) or 0
    return min_tokens - 1 - num_emitted if num_emitted < min_tokens else None


def _continues(known: RequestDrafter, row: BatchRow) -> bool:
    """Return whether the row's tokens begin with the drafter's context.

    Returns False if vLLM has dropped tokens that the drafter has received.
    """
    read = len(known.context)
    return read <= row.num_tokens and row.read(read - 1, read) == known.context[-1:]
