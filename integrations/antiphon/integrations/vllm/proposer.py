"""The proposer that vLLM runs with ``"method": "custom_class"``: one drafter per running request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch
from antiphon.accel.drafting.row_selection import ScoredDraft
from antiphon.integrations.vllm.admission import read_sources
from antiphon.integrations.vllm.batch_budget import BatchBudget
from antiphon.integrations.vllm.plugin import patch_worker
from antiphon.integrations.vllm.request_drafter import RequestDrafter

log = logging.getLogger("vllm.antiphon")  # a child of vLLM's logger, so that vLLM formats and shows its lines


class Runner(Protocol):
    """The attributes of vLLM's model runner that the proposer reads.

    Attributes:
        requests: State of every running or waiting request, by id.
        input_batch: The batch: ``req_ids`` and ``num_prompt_tokens`` of each row.
    """

    requests: Mapping[str, Any]
    input_batch: Any


class Proposer:
    """Drafts for vLLM from each request's prompt, references, prediction and answer so far.

    Select it with ``{"method": "custom_class", "model": "antiphon.integrations.vllm.Proposer",
    "num_speculative_tokens": 16}``. Drafts never change the output, only the number of steps. Therefore an exception
    in here is counted in ``failures``, logged once, and results in an empty draft. All state of a request is dropped
    when it ends, and no request is drafted from another request's texts.

    Args:
        vllm_config: vLLM's configuration, as vLLM passes it.
        patch: Called with the maximum number of draft tokens; patches vLLM's model runner.
        make_drafter: Makes the drafter of a request; suffix matching by default.
    """

    def __init__(
        self,
        vllm_config: Any,
        *,
        patch: Callable[[int], None] = patch_worker,
        make_drafter: DrafterFactory | None = None,
    ) -> None:
        self.num_draft_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self.vocab_size = int(vllm_config.model_config.get_vocab_size())
        self.failures = 0
        self.budget = BatchBudget()
        self.calibration = Calibration()
        self._make_drafter = make_drafter or partial(
            SuffixMatch, depth=self.num_draft_tokens, common=0, recycling=False, branching=False
        )
        self._requests: dict[str, RequestDrafter] = {}
        self._failed: dict[str, Any] = {}
        self._runner: Runner | None = None
        self._proposed_rows: dict[str, int] = {}
        self._scheduled_rows: Mapping[str, int] = {}
        self._ended = 0.0
        patch(self.num_draft_tokens)

    @property
    def num_requests(self) -> int:
        """Number of running and waiting requests whose state is held."""
        return len(self._requests) + len(self._failed)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing; vLLM calls this to load a draft model."""

    def prepare_step(self, runner: Runner, scheduled: Mapping[str, int]) -> None:
        """Receive the state of the batch before `propose`; see `BatchDrafter.prepare_step`."""
        self._runner, self._scheduled_rows = runner, scheduled

    def propose(
        self, sampled_token_ids: Sequence[Sequence[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, **_: Any
    ) -> list[list[int]]:
        """Return the draft of each row of the batch: at most `num_draft_tokens` tokens, none if drafts save no time.

        Args:
            sampled_token_ids: Tokens that the step emitted for row i; empty during its prefill.
            num_tokens_no_spec: Number of tokens of prompt and answer of row i, shape (rows,).
            token_ids_cpu: Those tokens, shape (rows, tokens).
        """
        nothing: list[list[int]] = [[] for _ in sampled_token_ids]
        if self._runner is None:
            return nothing
        started = perf_counter()
        try:
            self._observe_step_time(started)
            return self._draft_batch(self._runner, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:  # noqa: BLE001  # an empty draft is always right; an exception would end the engine
            self._count_failure(error)
            self._proposed_rows = {}
            return nothing
        finally:
            self._ended = perf_counter()

    def _observe_step_time(self, now: float) -> None:
        """Learn the step's duration if it ran exactly the proposed rows, which excludes steps with prefill."""
        if self._proposed_rows and self._proposed_rows == dict(self._scheduled_rows):
            self.budget.observe(sum(self._proposed_rows.values()), now - self._ended)
        self._proposed_rows = {}

    def _draft_batch(
        self, runner: Runner, sampled: Sequence[Sequence[int]], counts: Any, tokens: Any
    ) -> list[list[int]]:
        ids = runner.input_batch.req_ids
        self._drop_ended(runner)
        # 1. The drafter of every decoding request receives the new tokens and proposes a chain.
        decoding = [index for index in range(len(sampled)) if len(sampled[index])]
        drafters: dict[int, RequestDrafter] = {}
        proposed: list[ScoredDraft] = []
        for index in decoding:
            drafter = self._update(runner, ids[index], index, tokens[index, : int(counts[index])])
            if drafter is not None:
                drafters[index] = drafter
        for index, drafter in list(drafters.items()):
            try:
                proposed.append(drafter.propose(self.num_draft_tokens))
            except Exception as error:  # noqa: BLE001
                del drafters[index]
                self._fail(runner, ids[index], error)
        # 2. The budget cuts each chain to the tokens whose expected gain exceeds their cost in this batch.
        drafts: list[list[int]] = [[] for _ in sampled]
        counts_kept = self.budget.allocate(proposed, num_without_draft=len(decoding) - len(proposed))
        for (index, drafter), scored, kept in zip(drafters.items(), proposed, counts_kept, strict=True):
            drafts[index] = drafter.take(scored.draft, min(kept, self.num_draft_tokens))
        self._proposed_rows = {ids[index]: 1 + len(drafts[index]) for index in decoding}
        return drafts

    def _update(self, runner: Runner, request_id: str, index: int, tokens: Any) -> RequestDrafter | None:
        """Return the request's drafter, updated with all tokens; None if drafting for the request failed before."""
        owner = runner.requests[request_id]
        if self._failed.get(request_id) is owner:
            return None
        try:
            known = self._requests.get(request_id)
            if known is None or known.owner is not owner or not _continues(known, tokens):
                num_prompt_tokens = int(runner.input_batch.num_prompt_tokens[index])
                sources = read_sources(getattr(owner.sampling_params, "extra_args", None))
                prompt = tokens[:num_prompt_tokens].tolist()
                known = RequestDrafter(owner, self._make_drafter, prompt, sources, self.calibration, self.vocab_size)
                self._requests[request_id] = known
            known.observe(tokens[len(known.context) :].tolist())
        except Exception as error:  # noqa: BLE001
            self._fail(runner, request_id, error)
            return None
        return known

    def _drop_ended(self, runner: Runner) -> None:
        for held in (self._requests, self._failed):
            for request_id in [request_id for request_id in held if request_id not in runner.requests]:
                del held[request_id]

    def _fail(self, runner: Runner, request_id: str, error: Exception) -> None:
        """Stop drafting for this request; the other requests continue."""
        self._requests.pop(request_id, None)
        self._failed[request_id] = runner.requests.get(request_id)
        self._count_failure(error)

    def _count_failure(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            log.error(
                "Antiphon: drafting failed, so this request gets no drafts; its output is not affected. Further "
                "failures are counted, not logged.",
                exc_info=error,
            )


def _continues(known: RequestDrafter, tokens: Any) -> bool:
    """Return whether these tokens extend the drafter's context; they do not if vLLM has dropped some of it."""
    read = len(known.context)
    return read <= len(tokens) and int(tokens[read - 1]) == known.context[-1]
