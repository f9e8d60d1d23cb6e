"""Drafts in vLLM's Model Runner V2, which holds the tokens of its requests in buffers on the device.

Independent of vLLM: `antiphon.integrations.vllm.model_runner_v2` connects it with the model runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.integrations.vllm.batch import BatchDrafter, BatchRow


@dataclass(eq=False, slots=True)
class Request:
    """A request that is being computed, with a copy of its tokens on the host.

    The model runner drops a request when it ends or is preempted, and adds it again as a new one to continue.

    Attributes:
        tokens: Token ids of prompt and answer.
        num_prompt_tokens: Number of tokens of the prompt.
        extra_args: Arguments of the request; None if it has none.
    """

    tokens: list[int]
    num_prompt_tokens: int
    extra_args: Mapping[str, Any] | None


class Speculator:
    """Drafts for the batch of a step, written into a tensor as Model Runner V2 expects it.

    All rows of that tensor have the same width; `cut` tells the scheduler how many tokens of each row are a draft. With
    tensor parallelism every rank has such a tensor, so the first rank drafts and shares its tensor.

    Args:
        drafter: Drafts for the batch; None on a rank that receives the drafts of the first one.
        states: The model runner's ``RequestState``: ``req_id_to_index``, and the tensors ``draft_tokens``,
            ``all_token_ids.gpu`` and ``total_len.gpu``, with one row for each slot of the batch.
    """

    draft_logits = None  # drafts are single tokens, not distributions
    supports_mm_inputs = False

    def __init__(self, drafter: BatchDrafter | None, states: Any, share: Callable[[Any], object]) -> None:
        self.drafter = drafter
        self._states, self._share = states, share
        self._requests: dict[str, Request] = {}
        self._num_drafted: dict[str, int] = {}
        width = 1 + states.draft_tokens.shape[1]
        self._offsets = states.draft_tokens.new_tensor(range(-width, 0))

    @property
    def num_requests(self) -> int:
        """Number of running requests whose tokens are held."""
        return len(self._requests)

    def add_requests(self, new_requests: Iterable[Any]) -> None:
        """Receive the requests that join the batch, including preempted ones that continue.

        Args:
            new_requests: vLLM's ``NewRequestData`` of each: its id, tokens and sampling parameters.
        """
        if self.drafter is None:
            return
        with self.drafter.guard():
            for new in new_requests:
                extra_args = getattr(new.sampling_params, "extra_args", None)
                self._requests[new.req_id] = Request(list(new.prefill_token_ids), new.prompt_len, extra_args)

    def draft_step(self, batch: Any, num_sampled: Any) -> Any:
        """Return the drafts of all requests of the batch, padded with zeros, shape (requests, draft tokens).

        Args:
            batch: The model runner's ``InputBatch``.
            num_sampled: Number of tokens that the step emitted for each request, shape (requests,).
        """
        padded = [[0] * self._states.draft_tokens.shape[1] for _ in range(num_sampled.shape[0])]
        self._num_drafted = {}
        if self.drafter is not None:
            with self.drafter.guard():
                for index, draft in self._draft(self.drafter, batch, num_sampled).items():
                    padded[index][: len(draft)] = draft
                    self._num_drafted[batch.req_ids[index]] = len(draft)
        drafts = self._states.draft_tokens.new_tensor(padded)
        self._share(drafts)
        return drafts

    def cut(self, taken: Any) -> Any:
        """Return vLLM's ``DraftTokenIds`` of the last step with each row cut to its draft."""
        if taken is not None:
            for request_id, tokens in zip(taken.req_ids, taken.draft_token_ids, strict=True):
                del tokens[self._num_drafted.get(request_id, 0) :]
        return taken

    def _draft(self, drafter: BatchDrafter, batch: Any, num_sampled: Any) -> dict[int, list[int]]:
        """Return the drafts that are not empty, by the request's index in the batch."""
        running = self._states.req_id_to_index
        self._requests = {name: request for name, request in self._requests.items() if name in running}
        self._read_new_tokens(batch)
        emitted = num_sampled.tolist()
        indices = [at for at, name in enumerate(batch.req_ids) if emitted[at] > 0 and name in self._requests]
        rows = [_row(batch.req_ids[index], self._requests[batch.req_ids[index]]) for index in indices]
        scheduled = dict(zip(batch.req_ids, map(int, batch.num_scheduled_tokens), strict=True))
        drafts = drafter.draft(rows, scheduled, running)
        return {index: draft for index, draft in zip(indices, drafts, strict=True) if draft}

    def _read_new_tokens(self, batch: Any) -> None:
        """Copy the tokens that the step appended from the device, those of all requests at once."""
        slots, states = batch.idx_mapping, self._states
        totals = states.total_len.gpu[slots]
        # 1. Read the last tokens of each request, shape (requests, 1 + draft tokens): a step appends no more.
        positions = (totals[:, None] + self._offsets).clamp(min=0)
        last = states.all_token_ids.gpu[slots[:, None], positions].tolist()
        # 2. Append the new tokens. A copy that lags further behind, or is ahead, is read again.
        for name, slot, total, tokens in zip(batch.req_ids, slots.tolist(), totals.tolist(), last, strict=True):
            request = self._requests.get(name)
            if request is None:
                continue
            num_new = total - len(request.tokens)
            if 0 <= num_new <= len(tokens):
                request.tokens += tokens[len(tokens) - num_new :]
            else:
                request.tokens = states.all_token_ids.gpu[slot, :total].tolist()


def _row(name: str, request: Request) -> BatchRow:
    tokens = request.tokens
    return BatchRow(
        name,
        request,
        request.extra_args,
        request.num_prompt_tokens,
        len(tokens),
        lambda start, end: tokens[start:end],
    )
