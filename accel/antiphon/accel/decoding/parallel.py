"""Lookahead decoding over several devices: each has the whole model and a part of the draft. Knows one greedy text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)

from antiphon.accel.decoding.loop import loop_of
from antiphon.accel.decoding.running_text import Text
from antiphon.accel.decoding.sampling import Chooser
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.stopping import Stop
from antiphon.accel.decoding.transcript import Transcript
from antiphon.accel.drafting.budget import Fixed
from antiphon.accel.drafting.draft import ROOT, Draft, Logits, Tokens, path_to, select
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.engines.protocol import CachedSequence, Feed, Level
from antiphon.accel.engines.torch.engine import TorchEngine, engine_of


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
    Every process is called with the same arguments; without a process group this one does everything.

    Raises:
        ValueError: the model cannot verify trees after any number of tokens, or the prompt is shorter than two tokens.
    """
    engine = ParallelEngine(engine_of(model), group)
    if len(prompt) < 2:
        raise ValueError(f"The prompt has {len(prompt)} tokens; at least 2 are needed.")
    transcript = Transcript(torch.tensor([list(prompt)]))
    stop = Stop(transcript, _criteria(len(prompt) + max_new_tokens, ends), lambda: None)
    chooser = Chooser(transcript, LogitsProcessorList())
    text = Text(engine.sequence(), lookahead, chooser, stop, Fixed(lookahead.rows), references)
    yield from loop_of(engine).steps(text)


class ParallelEngine:
    """An engine in each of several processes, which verify parts of the same draft and tell each other the outcome.

    The outcome is the best token after every row, a number for each. Keys and values stay where they are: the tokens
    that a step has confirmed are read by every process in the next forward.

    Raises:
        ValueError: the model cannot verify trees after any number of tokens.
    """

    shared_cost = None
    reading = 0

    def __init__(self, engine: TorchEngine, group: Any = None) -> None:
        traits = engine.traits
        if traits.level != "tree" or traits.rope is not None:
            reason = traits.reason if traits.level != "tree" else "its rotary frequencies change with the length"
            raise ValueError(
                f"Lookahead over several devices verifies trees, which {type(engine.model).__name__} cannot: {reason}."
            )
        self.engine = engine
        self.lock = engine.lock
        self.loop: object | None = None
        self._group = group

    def sequence(self) -> ParallelSequence:
        """The memory of one more text in this process."""
        return ParallelSequence(self.engine.sequence())

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        """The forward of one text: of its draft this process runs its part, and has the outcome of all."""
        [feed] = feeds
        sequence = cast(ParallelSequence, feed.sequence).own
        kept = part_of_draft(feed.draft, *self._place())
        [logits] = self.engine.forward([replace(feed, sequence=sequence, draft=select(feed.draft, kept))])
        best = [-1] * (1 + len(feed.draft))
        for place, row in enumerate((ROOT, *kept)):
            best[1 + row] = logits.best(place - 1)
        return [BestTokens(self._exchanged(best), logits.vocabulary)]

    def _place(self) -> tuple[int, int]:
        return (dist.get_rank(self._group), dist.get_world_size(self._group)) if dist.is_initialized() else (0, 1)

    def _exchanged(self, best: list[int]) -> list[int]:
        """Everybody's tokens in one list: no token is negative, and where two have run a row the larger one counts."""
        if not dist.is_initialized():
            return best
        device = torch.device("cuda" if dist.get_backend(self._group) == "nccl" else "cpu")
        mine = torch.tensor(best, device=device)
        dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._group)
        tokens: list[int] = mine.tolist()
        return tokens


class ParallelSequence:
    """The memory of one text in one of several processes: of a step it keeps the tokens that all have read."""

    is_shareable = False

    def __init__(self, own: CachedSequence) -> None:
        self.own = own

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return self.own.length

    @property
    def level(self) -> Level:
        """What a forward may verify of this text."""
        return self.own.level

    @property
    def is_open(self) -> bool:
        """Whether the beginning of the text has been read."""
        return self.own.is_open

    def can_open(self, context: Tokens) -> bool:
        """Whether the last token of a prompt may be read with a draft beside it."""
        return self.own.can_open(context)

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """What of a draft can be verified now."""
        return self.own.fit(draft, rows, depth, pending)

    def keep(self, path: Sequence[int]) -> None:
        """Keep the pending tokens, and none of the rows: other processes may not have them."""
        self.own.keep(())

    def restart(self) -> None:
        """Forget everything that was read."""
        self.own.restart()

    def is_void(self, context: Tokens) -> bool:
        """Whether the memory has to be restarted."""
        return self.own.is_void(context)


@dataclass(frozen=True, slots=True)
class BestTokens:
    """`Logits` of which only the best tokens are known, the root's first."""

    tokens: Sequence[int]
    vocabulary: int

    def __len__(self) -> int:
        return len(self.tokens)

    def best(self, row: int) -> int:
        """The likeliest token after this row."""
        return self.tokens[1 + row]

    def head(self, rows: int) -> Logits:
        """The same without the rows behind the first ``rows``."""
        return BestTokens(self.tokens[: 1 + rows], self.vocabulary)

    def top(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Refused: processes tell each other one token for each row.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"Of rows verified by several processes the best token is known, not the best {k}.")

    def tensor(self) -> Tensor:
        """Refused as `top` is.

        Raises:
            ValueError: always.
        """
        raise ValueError("Rows verified by several processes have no logits here: decode greedily, without processors.")


def part(count: int, rank: int, size: int) -> range:
    """The part of ``count`` things that falls to one of ``size``: as many for each, and fewer or none for the last."""
    each = -(-count // size)
    return range(min(rank * each, count), min((rank + 1) * each, count))


def part_of_draft(draft: Draft, rank: int, size: int) -> list[int]:
    """The rows that fall to one of ``size`` processes: part of the paths, of candidates and of probes alike."""
    leaves = sorted(set(range(len(draft))) - set(draft.parents))
    candidates = [row for row in leaves if row < draft.candidates]
    probes = [row for row in leaves if row >= draft.candidates]
    kept: set[int] = set()
    for paths in (candidates, probes):
        for place in part(len(paths), rank, size):
            kept.update(path_to(draft, paths[place]))
    return sorted(kept)


def _criteria(length: int, ends: Iterable[int]) -> StoppingCriteriaList:
    criteria = StoppingCriteriaList([MaxLengthCriteria(length)])
    if tokens := list(ends):
        criteria.append(EosTokenCriteria(tokens))
    return criteria
