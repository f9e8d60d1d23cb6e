"""Lookahead parallelism: several devices, each with the whole model, verify parts of one greedy request's draft.

torchrun --standalone --nproc-per-node 4 examples/lookahead_parallel.py "Why is the sky blue?" --model Qwen/Qwen3-8B
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

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

from antiphon.accel import LanguageModel
from antiphon.accel.decoding.scheduler import scheduler_of
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.step import Request
from antiphon.accel.decoding.tokens import RequestOutput, Sampler, TokenHistory
from antiphon.accel.drafting.budget import FixedBudget
from antiphon.accel.drafting.draft import ROOT, Draft, Logits, Tokens, path_to, take_rows
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.engines.protocol import SequenceInput, ThreadSettings
from antiphon.accel.engines.torch.engine import TorchEngine, engine_of
from antiphon.accel.engines.torch.sequence import TorchSequence


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
    """Decode greedily with all processes of a group; every process yields the same steps, and none is a leader.

    Lookahead parallelism (Fu et al. 2024, arXiv 2402.02057, section 3.4): each of D devices verifies 1/D of the
    window's columns and 1/D of the n-grams. With its columns a device also verifies the rows of
    level 0 that they attend to. So each device computes about
    1/D of the rows. All processes give the same arguments.

    Args:
        prompt: Token ids, at least two.
        lookahead: The drafter.
        max_new_tokens: Maximum number of tokens to emit.
        ends: Token ids that end the text.
        references: Token ids of texts that n-grams are taken from.
        group: Process group of torch.distributed. None: the default group; if there is none, this
            process decodes alone.

    Raises:
        ValueError: The model cannot verify trees at every length, or the prompt is shorter than two
            tokens.
    """
    engine = ParallelEngine(engine_of(model), group)
    if len(prompt) < 2:
        raise ValueError(f"The prompt has {len(prompt)} tokens; at least 2 are needed.")
    history = TokenHistory(torch.tensor([list(prompt)]))
    criteria = StoppingCriteriaList([MaxLengthCriteria(len(prompt) + max_new_tokens)])
    if tokens := list(ends):
        criteria.append(EosTokenCriteria(tokens))
    request = Request(
        ParallelSequence(model, engine.engine.traits, shares=lambda: False),
        lookahead,
        Sampler(history, LogitsProcessorList()),
        RequestOutput(history, criteria, lambda: None),
        FixedBudget(lookahead.max_rows),
        references,
    )
    yield from scheduler_of(engine).steps(request)


class ParallelEngine:
    """An engine in each of several processes, which verify parts of one draft and exchange the most likely tokens.

    They exchange one number per row: the most likely token after it. Keys and values are not exchanged; each process
    computes the tokens that a step has confirmed in its next forward pass.

    Args:
        group: Process group of torch.distributed; None: the default one.

    Raises:
        ValueError: The model cannot verify trees at any length.
    """

    batch_cost = None
    prefill_batch_tokens = 0

    def __init__(self, engine: TorchEngine, group: Any = None) -> None:
        traits = engine.traits
        reasons = {
            traits.reason: traits.level != "tree",
            "its rotary frequencies change with the length": traits.rope is not None,
            "its layers keep recurrent or convolutional state": bool(traits.state_kinds),
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), ""):
            raise ValueError(
                f"Lookahead over several devices verifies trees, which {type(engine.model).__name__} cannot: {reason}."
            )
        self.engine = engine
        self.lock = engine.lock
        self.scheduler: object | None = None
        self._group = group

    def thread_settings(self) -> ThreadSettings:
        """Return the settings of the calling thread."""
        return self.engine.thread_settings()

    def thread_context(self, settings: ThreadSettings) -> AbstractContextManager[None]:
        """Return a context with these settings."""
        return self.engine.thread_context(settings)

    def forward(self, inputs: Sequence[SequenceInput], /) -> list[Logits]:
        """Run this process's part of a draft and return the most likely tokens of all rows; see `Engine.forward`."""
        [whole] = inputs
        rank, size = 0, 1
        if dist.is_initialized():
            rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        rows = part_of_draft(whole.draft, rank, size)
        [logits] = self.engine.forward([replace(whole, draft=take_rows(whole.draft, rows))])
        best = [-1] * (1 + len(whole.draft))
        for index, row in enumerate((ROOT, *rows)):
            best[1 + row] = logits.argmax(index - 1)
        return [BestTokens(self._all_reduce(best), logits.vocab_size)]

    def _all_reduce(self, best: list[int]) -> list[int]:
        """Combine the tokens of all processes by the maximum: a process has -1 for rows that it did not compute."""
        if not dist.is_initialized():
            return best
        merged = torch.tensor(best, device=self.engine.model.device)
        dist.all_reduce(merged, dist.ReduceOp.MAX, group=self._group)
        tokens: list[int] = merged.tolist()
        return tokens


class ParallelSequence(TorchSequence):
    """A sequence in one of several processes; it keeps only tokens that every process has computed."""

    def keep(self, path: Sequence[int]) -> None:
        """Keep the pending tokens and no draft rows: another process may have computed the accepted ones."""
        super().keep(())


@dataclass(frozen=True, slots=True)
class BestTokens:
    """`Logits` of which only the most likely token of each row is known.

    Attributes:
        tokens: The most likely token after the root and after every draft row.
        vocab_size: Number of the model's tokens.
    """

    tokens: Sequence[int]
    vocab_size: int

    def __len__(self) -> int:
        return len(self.tokens)

    def argmax(self, row: int) -> int:
        """Return the most likely token after a row."""
        return self.tokens[1 + row]

    def head(self, rows: int) -> Logits:
        """Return these logits cut to the root and the first ``rows`` draft rows."""
        return BestTokens(self.tokens[: 1 + rows], self.vocab_size)

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Raise an error: processes exchange only the most likely token of each row."""
        raise ValueError(f"Of rows verified by several processes the best token is known, not the best {k}.")

    def tensor(self) -> Tensor:
        """Raise an error: processes exchange only the most likely token of each row."""
        raise ValueError("Rows verified by several processes have no logits here: decode greedily, without processors.")


def part(count: int, rank: int, size: int) -> range:
    """Return the indices from 0 to ``count`` - 1 that a process handles: equally many each, fewer for the last ones."""
    share = -(-count // size)
    return range(min(rank * share, count), min((rank + 1) * share, count))


def part_of_draft(draft: Draft, rank: int, size: int) -> list[int]:
    """Return the rows that a process verifies: its part of the candidate paths and its part of the probe paths."""
    leaves = sorted(set(range(len(draft))) - set(draft.parents))
    candidates = [row for row in leaves if row < draft.num_candidates]
    probes = [row for row in leaves if row >= draft.num_candidates]
    kept: set[int] = set()
    for paths in (candidates, probes):
        for index in part(len(paths), rank, size):
            kept.update(path_to(draft, paths[index]))
    return sorted(kept)


def main() -> None:
    """Answer a question with all processes that torchrun has started, or alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--model", default="smollm2", help="folder or name on the hub; smollm2 is a package")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    options = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    model = LanguageModel.from_pretrained(options.model, engine="torch", device=device)
    prompt = model.tokenize([{"role": "user", "content": options.question}]).tokens
    steps = decode_parallel(
        model.model,
        prompt,
        Lookahead(7, 5, 7),
        max_new_tokens=options.max_new_tokens,
        ends=[model.tokenizer.eos_token_id],
    )
    tokens = [token for step in steps for token in step.tokens]
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(model.tokenizer.decode(tokens, skip_special_tokens=True))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
