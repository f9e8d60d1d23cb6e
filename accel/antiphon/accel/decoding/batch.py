"""Several texts decoded together: the loop of `decode` side by side, one forward for the drafts of all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel.decoding.run import Run
from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.budget import Budget, share_rows
from antiphon.accel.drafting.draft import EMPTY, Draft, trim
from antiphon.accel.drafting.verify import walk
from antiphon.accel.engines.torch.batched_model import BatchedModel
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.engines.torch.probe import shares_forwards, traits_of


@dataclass(eq=False, slots=True)
class _Seat:
    """A text's place in a batch, and the steps that nobody has asked for yet."""

    run: Run
    budget: Budget
    steps: deque[Step] = field(default_factory=deque)
    begun: bool = False


class Batch:
    """Decodes up to ``size`` texts at once; when one ends, the next that waits takes its place.

    Each text is drafted for, verified and ended by itself, so it says what it would say alone; only the forwards are
    shared, and with them the seconds of its steps.

    Raises:
        ValueError: ``size`` is below 1.
    """

    def __init__(self, model: PreTrainedModel, *, size: int = 8) -> None:
        if size < 1:
            raise ValueError(f"The batch size is {size}; it must be at least 1.")
        self.size = size
        self.memory = BatchedModel(model, traits_of(model))
        self._waiting: deque[_Seat] = deque()
        self._seats: list[_Seat] = []

    def add(self, run: Run) -> Iterator[Step]:
        """The steps of one more text. Asking for one runs forwards for all; dropping the iterator ends the text."""
        seat = _Seat(run, run.budget)
        self._waiting.append(seat)
        return self._steps(seat)

    def _steps(self, seat: _Seat) -> Iterator[Step]:
        try:
            while True:
                while not seat.steps:
                    self._advance()
                step = seat.steps.popleft()
                yield step
                if step.finish:
                    return
        finally:
            self._leave([seat])

    @torch.no_grad()
    def _advance(self) -> None:
        """One forward: the prompts of those that can begin, or else the next draft of everybody."""
        places = min(self.size - len(self._seats), len(self._waiting))
        if places:
            self._begin([self._waiting.popleft() for _ in range(places)])
        else:
            self._verify()
        self._leave([seat for seat in self._seats if seat.run.stop.finish])

    def _begin(self, seats: list[_Seat]) -> None:
        started = perf_counter()
        for seat in seats:
            seat.run.drafter.begin(tuple(seat.run.transcript.tokens), seat.run.references)
        drafted = perf_counter()
        chunks = [seat.run.prefill_chunk for seat in seats if seat.run.prefill_chunk]
        logits = self.memory.admit([seat.run.prompt for seat in seats], min(chunks, default=None))
        self._seats += seats
        self._accept(seats, [EMPTY] * len(seats), logits, started, drafted)

    def _verify(self) -> None:
        started = perf_counter()
        proposed = [self._draft(index, seat) for index, seat in enumerate(self._seats)]
        drafts = share_rows(proposed, [seat.budget for seat in self._seats], self.memory.lengths)
        rows, length = len(drafts) * (1 + max(map(len, drafts))), max(self.memory.lengths)
        drafted = perf_counter()
        logits = self.memory.forward([seat.run.transcript.tokens[-1] for seat in self._seats], drafts)
        self.memory.keep(self._accept(self._seats, drafts, logits, started, drafted))
        self._seats[0].budget.spent(rows, length, perf_counter() - drafted)  # one cost for all: they share the model

    def _draft(self, index: int, seat: _Seat) -> Draft:
        run, budget = seat.run, seat.budget
        draft = run.drafter.propose(run.transcript.tokens, budget.rows)
        reach = self.memory.reachable(index)
        return trim(draft, budget.rows + draft.probes, min(run.stop.room - 1, reach), reach)

    def _accept(
        self, seats: Sequence[_Seat], drafts: Sequence[Draft], logits: Sequence[Tensor], started: float, drafted: float
    ) -> list[tuple[int, ...]]:
        """Walk every draft, tell its drafter, and note the step of its text; the paths that hold."""
        forwarded = perf_counter()
        paths: list[tuple[int, ...]] = []
        for seat, draft, rows in zip(seats, drafts, logits, strict=True):
            run = seat.run
            prefilled = 0 if seat.begun else len(run.prompt)
            seat.begun = True
            accepted = walk(draft, run.chooser.over(rows), run.stop.commit)
            run.drafter.observe(draft, accepted, TorchLogits(rows))
            seat.budget.learn(accepted)
            paths.append(accepted.path)
            seat.steps.append(
                Step(
                    tokens=accepted.tokens,
                    drafted=len(draft),
                    accepted=len(accepted.path),
                    seconds=perf_counter() - started,
                    draft_seconds=drafted - started,
                    forward_seconds=forwarded - drafted,
                    finish=run.stop.finish,
                    prefilled=prefilled,
                )
            )
        return paths

    def _leave(self, seats: Sequence[_Seat]) -> None:
        """Free the places of texts that have ended, or that nobody reads any more."""
        gone = [index for index, seat in enumerate(self._seats) if seat in seats]
        if gone:
            self.memory.drop(gone)
            self._seats = [seat for seat in self._seats if seat not in seats]
        for seat in seats:
            if seat in self._waiting:
                self._waiting.remove(seat)


def steps_of(model: PreTrainedModel, runs: Sequence[Run], size: int | None = None) -> list[Iterator[Step]]:
    """The steps of each text: from forwards that ``size`` texts (all) share where the model allows it."""
    if len(runs) == 1 or any(run.bucket or run.learned for run in runs) or not shares_forwards(model):
        return [run.steps() for run in runs]
    batch = Batch(model, size=size or len(runs))
    return [batch.add(run) for run in runs]


def joined(runs: Sequence[Run]) -> Tensor | GenerateDecoderOnlyOutput:
    """What `generate` returns for a batch, without a cache: where a text has ended, padding is certain."""
    config = runs[0].request.config
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    padding = next((token for token in (config.pad_token_id, *ends) if token is not None), 0)
    length = max(len(run.transcript.tokens) for run in runs)
    sequences = torch.cat(
        [pad(ids, (0, length - ids.shape[1]), value=padding) for ids in (r.transcript.ids for r in runs)]
    )
    if not config.return_dict_in_generate:
        return sequences
    fields: dict[str, Any] = {
        "sequences": sequences,
        "scores": _side_by_side([run.chooser.scores for run in runs], padding),
        "logits": _side_by_side([run.chooser.logits for run in runs], padding),
    }
    return GenerateDecoderOnlyOutput(**fields)


def _side_by_side(kept: Sequence[list[Tensor] | None], padding: int) -> tuple[Tensor, ...] | None:
    """The rows of every text, step by step, each of shape (texts, vocab)."""
    rows = [tensors for tensors in kept if tensors is not None]
    if not rows:
        return None
    ended = torch.full_like(rows[0][0], -torch.inf)
    ended[:, padding] = 0.0
    return tuple(torch.cat(step) for step in zip_longest(*rows, fillvalue=ended))
