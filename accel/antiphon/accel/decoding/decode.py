"""The loop: draft, weigh, one forward, walk, keep. Yields one Step per forward."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from time import perf_counter

import torch
from torch import Tensor

from antiphon.accel.decoding.sampling import Chooser
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.stopping import Stop
from antiphon.accel.drafting.budget import Budget, share_rows
from antiphon.accel.drafting.draft import EMPTY, Draft, Drafter, Tokens, padded
from antiphon.accel.drafting.verify import walk
from antiphon.accel.engines.torch.cache import CachedModel
from antiphon.accel.engines.torch.compiled import CompiledModel
from antiphon.accel.engines.torch.logits import TorchLogits


@torch.no_grad()
def decode(
    cached: CachedModel | CompiledModel,
    drafter: Drafter,
    chooser: Chooser,
    stop: Stop,
    budget: Budget,
    *,
    references: Sequence[Tokens] = (),
    prefill_chunk: int | None = None,
) -> Iterator[Step]:
    """Decode until ``stop`` says so, with the draft rows that the ``budget`` keeps beside the root in each forward.

    The first step reads what the cache does not hold yet of the prompt, and verifies a draft only where the drafter has
    one at the very beginning; every further one drafts, and emits the accepted path and the model's own next token. The
    text is the chooser's alone, whatever the drafter guesses.
    """
    context = stop.transcript.tokens
    started = perf_counter()
    opening = drafter.begin(tuple(context), references) or EMPTY
    drafted = perf_counter()
    prefilled = len(context) - cached.length
    draft, logits = _open(cached, opening, budget, stop, prefill_chunk)
    fed = length = 0
    while True:
        forwarded = perf_counter()
        accepted = walk(draft, chooser.over(logits, cached.best), stop.commit)
        cached.keep(accepted.path)
        walked = perf_counter()
        if fed:  # neither a prompt nor a text read anew
            budget.spent(fed, length, walked - drafted)
        budget.learn(accepted)
        drafter.observe(draft, accepted, TorchLogits(logits, cached.best))
        ended = perf_counter()
        yield Step(
            tokens=accepted.tokens,
            drafted=len(draft),
            accepted=len(accepted.path),
            seconds=ended - started,
            padded=max(fed - 1 - len(draft), 0),
            prefilled=prefilled,
            draft_seconds=(drafted - started) + (ended - walked),
            forward_seconds=forwarded - drafted,
            finish=stop.finish,
        )
        if stop.finish:
            return
        started = perf_counter()
        if cached.must_rebuild(context):
            drafted = started
            draft, logits, fed, prefilled = EMPTY, cached.rebuild(context), 0, len(context)
        else:
            prefilled = 0
            length = cached.length
            draft = _fitted(cached, drafter.propose(context, budget.rows), budget, stop)
            filled = _fill(cached, draft, context[-1], budget.pads(draft, length), stop.room - 1)
            fed = 1 + len(filled)
            drafted = perf_counter()
            logits = cached.forward(context[-1:], filled)[: 1 + len(draft)]


def _open(
    cached: CachedModel | CompiledModel, opening: Draft, budget: Budget, stop: Stop, chunk: int | None
) -> tuple[Draft, Tensor]:
    """Read the prompt: as it is, or where there is something to verify beside its last token, that one by itself.

    There is no tree over a whole prompt: its mask would be quadratic in its length.
    """
    context = stop.transcript.tokens
    if not len(opening) or not cached.can_open(context):
        return EMPTY, cached.prefill(context[cached.length :], chunk)
    cached.prefill(context[cached.length : -1], chunk)
    cached.keep(())
    draft = _fitted(cached, opening, budget, stop)
    return draft, cached.forward(context[-1:], draft)


def _fitted(cached: CachedModel | CompiledModel, draft: Draft, budget: Budget, stop: Stop) -> Draft:
    """What of a draft the model can verify now, and of that what the budget says; likely paths side by side."""
    draft = cached.fit(draft, budget.rows + draft.probes, stop.room - 1)
    return share_rows([draft], [budget], [cached.length])[0]


def _fill(cached: CachedModel | CompiledModel, draft: Draft, token: int, pads: int, depth: int) -> Draft:
    """The draft with rows of no meaning, where they make the forward cheaper and the model can take them."""
    filled = cached.fit(padded(draft, token, pads), sys.maxsize, depth) if pads and depth else draft
    return filled if len(filled) == len(draft) + pads else draft
