"""The loop: draft, one forward, walk, keep. Yields one Step per forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch

from antiphon.accel.cache import CachedModel
from antiphon.accel.compiled import CompiledModel
from antiphon.accel.draft import EMPTY, Drafter, Tokens
from antiphon.accel.sampling import Chooser
from antiphon.accel.stats import Step
from antiphon.accel.stopping import Stop
from antiphon.accel.verify import walk


@torch.no_grad()
def decode(
    cached: CachedModel | CompiledModel,
    drafter: Drafter,
    chooser: Chooser,
    stop: Stop,
    *,
    references: Sequence[Tokens] = (),
    rows: int = 32,
    prefill_chunk: int | None = None,
) -> Iterator[Step]:
    """Decode until ``stop`` says so, with at most ``rows`` draft rows beside the root in each forward.

    The first step reads what the cache does not hold yet of the prompt and emits one token; every further one emits
    the accepted path and the model's own next token. The text is the chooser's alone, whatever the drafter guesses.
    """
    context = stop.transcript.tokens
    started = perf_counter()
    drafter.begin(tuple(context), references)
    drafted = perf_counter()
    draft, logits = EMPTY, cached.prefill(context[cached.length :], prefill_chunk)
    while True:
        forwarded = perf_counter()
        accepted = walk(draft, chooser.over(logits, cached.best), stop.commit)
        cached.keep(accepted.path)
        walked = perf_counter()
        drafter.observe(draft, accepted, logits)
        ended = perf_counter()
        yield Step(
            tokens=accepted.tokens,
            drafted=len(draft),
            accepted=len(accepted.path),
            seconds=ended - started,
            draft_seconds=(drafted - started) + (ended - walked),
            forward_seconds=forwarded - drafted,
            finish=stop.finish,
        )
        if stop.finish:
            return
        started = perf_counter()
        if cached.must_rebuild(context):
            drafted = started
            draft, logits = EMPTY, cached.rebuild(context)
        else:
            draft = cached.fit(drafter.propose(context, rows), rows, stop.room - 1)
            drafted = perf_counter()
            logits = cached.forward(context[-1:], draft)
