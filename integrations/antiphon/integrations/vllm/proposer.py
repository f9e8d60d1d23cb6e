"""Who drafts in vLLM: a proposer for ``"method": "custom_class"``, with one drafter for each running request."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch
from antiphon.accel.drafting.paying import ScoredDraft
from antiphon.integrations.vllm.admission import sources_of
from antiphon.integrations.vllm.batch_budget import BatchBudget
from antiphon.integrations.vllm.request_drafts import RequestDrafts
from antiphon.integrations.vllm.seam import Seam

log = logging.getLogger("vllm.antiphon")  # below vLLM's own, so that it is shown as vLLM's lines are


class Runner(Protocol):
    """What is looked at of vLLM's model runner: who is in which row of the batch, and what each request brought."""

    requests: Mapping[str, Any]
    input_batch: Any


class Proposer:
    """Drafts for vLLM what each request's prompt, references, prediction and own text say comes next.

    Named to vLLM as ``{"method": "custom_class", "model": "antiphon.integrations.vllm.Proposer",
    "num_speculative_tokens": 16}``. Drafts never change what is emitted, only how many steps it takes; so whatever
    fails in here is logged, once, counted in ``failures``, and drafts nothing. Nothing of a request is kept
    when it has ended, and no request is drafted from another's texts.
    """

    def __init__(self, vllm_config: Any, *, seam: Seam | None = None, make: DrafterFactory | None = None) -> None:
        self.rows = int(vllm_config.speculative_config.num_speculative_tokens)
        self.failures = 0
        self.budget = BatchBudget()
        self.calibration = Calibration()
        self._make = make or partial(SuffixMatch, depth=self.rows, common=0, recycling=False, branching=False)
        self._requests: dict[str, RequestDrafts] = {}
        self._broken: dict[str, Any] = {}
        self._runner: Runner | None = None
        self._given: dict[str, int] = {}  # rows of the step under way, by request
        self._scheduled: Mapping[str, int] = {}
        self._ended = 0.0
        (seam or Seam()).introduce(self.rows)

    @property
    def kept(self) -> int:
        """How many requests it holds something of: those that run or wait."""
        return len(self._requests) + len(self._broken)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Nothing to load: whoever drafts here is no model."""

    def meet(self, runner: Runner, scheduled: Mapping[str, int]) -> None:
        """Be told, before each `propose`, whose batch it is, and how many rows each request had in the step."""
        self._runner, self._scheduled = runner, scheduled

    def propose(
        self, sampled_token_ids: Sequence[Sequence[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, **_: Any
    ) -> list[list[int]]:
        """The draft of each row of the batch, at most ``rows`` tokens; none where nothing pays.

        ``token_ids_cpu[i, :num_tokens_no_spec[i]]`` are prompt and answer of row i; ``sampled_token_ids[i]`` is empty
        while its prompt is still being read.
        """
        nothing: list[list[int]] = [[] for _ in sampled_token_ids]
        if self._runner is None:
            return nothing
        started = perf_counter()
        try:
            self._learn(started)
            return self._drafts(self._runner, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:  # noqa: BLE001  # a draft is never needed, and the engine is everybody's
            self._failed(error)
            self._given = {}
            return nothing
        finally:
            self._ended = perf_counter()

    def _learn(self, now: float) -> None:
        """What the step has taken, if it was of the rows that were given to it: not where prompts were read too."""
        if self._given and self._given == dict(self._scheduled):
            self.budget.spent(sum(self._given.values()), now - self._ended)
        self._given = {}

    def _drafts(self, runner: Runner, sampled: Sequence[Sequence[int]], counts: Any, tokens: Any) -> list[list[int]]:
        ids = runner.input_batch.req_ids
        self._forget(runner)
        drafting: dict[int, RequestDrafts] = {}
        offers: list[ScoredDraft] = []
        decoding = [index for index in range(len(sampled)) if len(sampled[index])]
        for index in decoding:
            request = self._read(runner, ids[index], index, tokens[index, : int(counts[index])])
            if request is not None:
                drafting[index] = request
        for index, request in list(drafting.items()):
            try:
                offers.append(request.offer(self.rows))
            except Exception as error:  # noqa: BLE001
                del drafting[index]
                self._refuse(runner, ids[index], error)
        drafts: list[list[int]] = [[] for _ in sampled]
        shares = self.budget.shares(offers, plain=len(decoding) - len(offers))
        for (index, request), offer, share in zip(drafting.items(), offers, shares, strict=True):
            drafts[index] = request.take(offer.draft, min(share, self.rows))
        self._given = {ids[index]: 1 + len(drafts[index]) for index in decoding}
        return drafts

    def _read(self, runner: Runner, name: str, index: int, tokens: Any) -> RequestDrafts | None:
        """The request's drafts, once it has read what is new; None for a request that failed before."""
        owner = runner.requests[name]
        if self._broken.get(name) is owner:
            return None
        try:
            known = self._requests.get(name)
            if known is None or known.owner is not owner or not _continues(known, tokens):
                prompt = int(runner.input_batch.num_prompt_tokens[index])
                sources = sources_of(getattr(owner.sampling_params, "extra_args", None))
                known = RequestDrafts(owner, self._make, tokens[:prompt].tolist(), sources, self.calibration)
                self._requests[name] = known
            known.read(tokens[len(known.context) :].tolist())
        except Exception as error:  # noqa: BLE001
            self._refuse(runner, name, error)
            return None
        return known

    def _forget(self, runner: Runner) -> None:
        for kept in (self._requests, self._broken):
            for name in [name for name in kept if name not in runner.requests]:
                del kept[name]

    def _refuse(self, runner: Runner, name: str, error: Exception) -> None:
        """Draft nothing more for a request that cannot be drafted for; the others go on."""
        self._requests.pop(name, None)
        self._broken[name] = runner.requests.get(name)
        self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            log.error(
                "Antiphon: drafting failed and drafts nothing there; answers stay right. Further failures are counted "
                "only.",
                exc_info=error,
            )


def _continues(known: RequestDrafts, tokens: Any) -> bool:
    """Whether these tokens go on where the request has read to: not after vLLM has taken some of them back."""
    read = len(known.context)
    return read <= len(tokens) and int(tokens[read - 1]) == known.context[-1]
