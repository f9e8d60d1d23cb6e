"""Choose, for each request, whether its texts or the model's own head provide the draft. vLLM is not imported."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Any

from antiphon.accel.drafting.calibration import NUM_BINS, Calibration
from antiphon.accel.drafting.draft import chain
from antiphon.accel.drafting.row_selection import ScoredDraft
from antiphon.integrations.vllm.batch import BatchRow
from antiphon.integrations.vllm.proposer import Chain, Proposer, Runner, batch_rows

INITIAL_CHANCE = 0.6
"""Assumed chance that the head's next token is accepted if all earlier ones are, until acceptance is observed."""


class HeadAcceptance:
    """Acceptance statistics of the head for one request, by position in the draft.

    A token counts as accepted if the answer has the same token at that position, even if another
    draft was verified in that step.

    Args:
        engine: Statistics of all requests, the prior of this request's own statistics.
    """

    def __init__(self, owner: Any, engine: Calibration) -> None:
        self.owner = owner
        self._engine, self._request = engine, Calibration()
        self._draft: Sequence[int] = ()
        self._num_tokens = 0

    def chances(self, num_tokens: int) -> list[float]:
        """Return, for each of the head's next ``num_tokens`` tokens, the chance that the draft up to it is accepted."""
        places = [min(place, NUM_BINS - 1) for place in range(num_tokens)]
        prior = [self._engine.chance(place, INITIAL_CHANCE) for place in places]
        return list(accumulate(map(self._request.chance, places, prior), mul))

    def remember(self, draft: Sequence[int], num_tokens: int) -> None:
        """Remember a draft of the head until `observe` compares it with the next tokens.

        Args:
            draft: Tokens of the draft.
            num_tokens: Number of tokens of prompt and answer before the draft.
        """
        self._draft, self._num_tokens = draft, num_tokens

    def observe(self, row: BatchRow) -> None:
        """Compare the last draft with the tokens that the request has emitted since."""
        if self._draft and row.num_tokens > self._num_tokens:
            emitted = row.read(self._num_tokens, row.num_tokens)
            for place, (drafted, token) in enumerate(zip(self._draft, emitted, strict=False)):
                for counts in (self._engine, self._request):
                    counts.record(min(place, NUM_BINS - 1), drafted == token)
                if drafted != token:
                    break
        self._draft = ()


@dataclass(slots=True)
class _Step:
    """The state between `begin_step` and `end_step`.

    Attributes:
        rows: The requests that emitted tokens, by their index in the batch.
        chains: The chains drafted from the requests' texts, by position in ``rows``.
        from_head: Positions in ``rows`` of the requests for which the head drafts.
    """

    rows: dict[int, BatchRow]
    chains: dict[int, Chain]
    from_head: set[int] = field(default_factory=set)


class HeadProposer(Proposer):
    """Drafts from a request's own texts or with the head, whichever has the higher expected number of accepted tokens.

    Model Runner V1 calls `begin_step` before the head drafts, and `end_step` after it. The choice
    is made in each step, from the acceptance statistics of earlier steps.

    Args:
        head_tokens: Maximum number of tokens that the head drafts in a step.
    """

    def __init__(self, vllm_config: Any, head_tokens: int, **options: Any) -> None:
        super().__init__(vllm_config, **options)
        self.head_tokens = head_tokens
        self._head_counts = Calibration()
        self._heads: dict[str, HeadAcceptance] = {}
        self._step: _Step | None = None

    def begin_step(self, runner: Runner, scheduled: Mapping[str, int], sampled: Sequence[Sequence[int]]) -> bool:
        """Draft from the texts of all requests; return whether the head must also draft in this step.

        Args:
            scheduled: Number of rows of each request in the step that was just computed, by request id.
            sampled: Tokens that the step emitted for each row of the batch; empty during the row's
                prefill.
        """
        self._step = None
        with self.guard():
            batch = runner.input_batch
            rows = batch_rows(runner, sampled, batch.num_tokens_no_spec, batch.token_ids_cpu)
            step = _Step(rows, self._propose_chains([*rows.values()], scheduled, runner.requests))
            for place, row in enumerate(rows.values()):
                head = self._head(row)
                head.observe(row)
                own = sum(step.chains[place].scored.chances) if place in step.chains else 0.0
                if sum(head.chances(self._most_of_head(row))) > own:
                    step.from_head.add(place)
            self._step = step
            return bool(step.from_head)
        return True  # after a failure, vLLM uses the head as it does without Antiphon

    def end_step(self, head_drafts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the draft of each row of the batch.

        Args:
            head_drafts: The head's tokens for each row; empty if `begin_step` returned False.
        """
        drafts, step = [list(draft) for draft in head_drafts], self._step
        if step is None:
            return drafts
        with self.guard():
            for place, (index, row) in enumerate(step.rows.items()):
                head, draft = self._heads[row.request_id], drafts[index]
                head.remember(draft, row.num_tokens)
                if place in step.from_head:
                    step.chains[place] = _head_chain(draft[: self._most_of_head(row)], head)
            chosen = dict(zip(step.rows, self._cut([*step.rows.values()], step.chains), strict=True))
            return [chosen.get(index, []) for index in range(len(drafts))]
        return drafts

    def _most_of_head(self, row: BatchRow) -> int:
        return max(min(self.head_tokens, self._most(row)), 0)

    def _head(self, row: BatchRow) -> HeadAcceptance:
        known = self._heads.get(row.request_id)
        if known is None or known.owner is not row.owner:
            known = self._heads[row.request_id] = HeadAcceptance(row.owner, self._head_counts)
        return known

    def _drop_ended(self, running: Container[str]) -> None:
        super()._drop_ended(running)
        self._heads = {request_id: head for request_id, head in self._heads.items() if request_id in running}


def _head_chain(tokens: Sequence[int], head: HeadAcceptance) -> Chain:
    """Return the head's draft as a chain with the acceptance chances counted so far."""
    chances = head.chances(len(tokens))
    scored = ScoredDraft(chain(tuple(tokens), tuple(chances)), chances)
    return Chain(scored, lambda draft, count: list(draft.tokens[:count]))
