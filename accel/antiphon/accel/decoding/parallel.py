"""Lookahead decoding over several devices: each has the whole model and a part of the draft. Knows one greedy text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from transformers import EosTokenCriteria, MaxLengthCriteria, PreTrainedModel, StoppingCriteriaList

from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.stopping import Stop
from antiphon.accel.decoding.transcript import Transcript
from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.drafting.verify import walk
from antiphon.accel.engines.torch.best import argmax
from antiphon.accel.engines.torch.cache import CachedModel
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.engines.torch.probe import traits_of


@dataclass(frozen=True, slots=True)
class Process:
    """Where this process stands: its number among all, and its device (None: chosen as usual)."""

    rank: int = 0
    size: int = 1
    device: str | None = None


@contextmanager
def process_group() -> Iterator[Process]:
    """Join the processes that torchrun has started beside this one, and yield this one's place; alone without them.

    Its device is the GPU of its rank on this machine where there are enough for all, else the CPU; they talk by NCCL
    on GPUs and by Gloo on CPUs.
    """
    if "WORLD_SIZE" not in os.environ:
        yield Process()
        return
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        yield Process(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


@torch.no_grad()
def decode_parallel(
    model: PreTrainedModel,
    prompt: Tokens,
    lookahead: Lookahead,
    *,
    max_new_tokens: int,
    ends: Iterable[int] = (),
    references: Sequence[Tokens] = (),
    group: Any = None,
) -> Iterator[Step]:
    """Decode greedily with everybody in the process ``group``; all get the same steps, and none waits for a leader.

    Lookahead parallelism (Fu et al. 2024, arXiv 2402.02057, section 3.4): of D devices each verifies 1/D of the
    window's columns, with what they see of level 0, and 1/D of the n-grams, so a forward has about 1/D of the rows.
    Afterwards all tell each other the answers in their columns and the tokens that their rows confirm, a few numbers;
    the longest run is the text's. Keys and values stay where they are: everybody reads the run's tokens again in the
    next forward. Every process is called with the same arguments; without a process group this one does everything.

    Raises:
        ValueError: the model cannot verify trees after any number of tokens, or the prompt is shorter than two tokens.
    """
    stop = Stop(Transcript(torch.tensor([list(prompt)])), _criteria(len(prompt) + max_new_tokens, ends), lambda: None)
    started = perf_counter()
    cached = _prefilled(model, prompt)
    lookahead.begin(prompt, references)
    pending, prefilled = list(prompt[-1:]), len(prompt)
    while not stop.finish:
        columns, draft = _share(lookahead, pending[-1], group)
        draft = cached.fit(draft, sys.maxsize, stop.room - 1, len(pending))
        drafted = perf_counter()
        logits = cached.forward(pending, draft)
        confirmed = _confirmed(draft, argmax(logits).tolist())
        forwarded = perf_counter()
        cached.keep(())
        answers, runs = _exchanged(lookahead, lookahead.answers(draft, TorchLogits(logits), columns), confirmed, group)
        pending = list(_until_end(max(runs, key=len), stop))
        lookahead.advance(answers, pending)
        yield Step(
            tokens=tuple(pending),
            drafted=len(draft),
            accepted=len(pending) - 1,
            seconds=perf_counter() - started,
            forward_seconds=forwarded - drafted,
            finish=stop.finish,
            prefilled=prefilled,
        )
        started, prefilled = perf_counter(), 0


def part(count: int, rank: int, size: int) -> range:
    """The part of ``count`` things that falls to one of ``size``: as many for each, and fewer or none for the last."""
    each = -(-count // size)
    return range(min(rank * each, count), min((rank + 1) * each, count))


def _prefilled(model: PreTrainedModel, prompt: Tokens) -> CachedModel:
    traits = traits_of(model)
    if traits.level != "tree" or traits.rope is not None:
        reason = traits.reason if traits.level != "tree" else "its rotary frequencies change with the length"
        raise ValueError(
            f"Lookahead over several devices verifies trees, which {type(model).__name__} cannot: {reason}."
        )
    if len(prompt) < 2:
        raise ValueError(f"The prompt has {len(prompt)} tokens; at least 2 are needed.")
    cached = CachedModel(model, traits)
    cached.prefill(prompt[:-1])
    cached.keep(())
    return cached


def _confirmed(draft: Draft, best: Sequence[int]) -> tuple[int, ...]:
    return walk(draft, lambda row: best[1 + row], lambda token: False).tokens


def _share(lookahead: Lookahead, root: int, group: Any) -> tuple[range, Draft]:
    """The columns of the window that fall to this process, and its part of the draft."""
    rank, size = (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)
    columns = part(lookahead.window.columns, rank, size) if lookahead.window else range(0)
    guesses = part(len(lookahead.pool.after(root)), rank, size)
    return columns, lookahead.share(root, columns, slice(guesses.start, guesses.stop), lookahead.rows)


def _exchanged(
    lookahead: Lookahead, answers: Tokens, confirmed: Tokens, group: Any
) -> tuple[list[int], list[list[int]]]:
    """The answers of all columns, none where a column has none, and what each process has confirmed."""
    columns = lookahead.window.columns if lookahead.window else 0
    if not dist.is_initialized():
        told = [(list(answers), list(confirmed))]
    else:
        told = _gathered(answers, confirmed, lookahead.width + 2 * lookahead.ngram, group)
    every = [answer for each, _ in told for answer in each]
    return every if len(every) == columns else [], [run for _, run in told]


def _gathered(answers: Tokens, confirmed: Tokens, size: int, group: Any) -> list[tuple[list[int], list[int]]]:
    """Both lists of every process, by rank, in one exchange of ``size`` numbers for each list."""
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    mine = torch.full((2, size), -1, device=device)  # no token is negative
    for row, tokens in zip(mine, (answers, confirmed), strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    known = [[[token for token in row if token >= 0] for row in each.tolist()] for each in theirs]
    return [(first, second) for first, second in known]


def _criteria(length: int, ends: Iterable[int]) -> StoppingCriteriaList:
    ends = list(ends)
    return StoppingCriteriaList([MaxLengthCriteria(length), *([EosTokenCriteria(ends)] if ends else [])])


def _until_end(tokens: Tokens, stop: Stop) -> Iterator[int]:
    """The tokens down to the one that ends the text, each made part of it."""
    for token in tokens:
        yield token
        if stop.commit(token):
            return
