"""A small engine of the tests' own, in the shape in which vLLM's model runner shows itself to a proposer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from antiphon.integrations.vllm.admission import ADMITTED, Sources
from antiphon.integrations.vllm.proposer import Proposer

NOTHING = Sources()

WIDTH = 8192


class NoSeam:
    """Introduces nobody: the engine of the tests tells the proposer itself whose batch it is."""

    def introduce(self, rows: int) -> None:
        """Nothing."""


def proposer(rows: int = 12, **options: Any) -> Proposer:
    config = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=rows))
    return Proposer(config, seam=NoSeam(), **options)  # type: ignore[arg-type]


@dataclass
class Request:
    """A request that says a text that is known: what a greedy model would emit, token by token."""

    name: str
    prompt: list[int]
    says: list[int]
    sources: Sources = NOTHING
    emitted: int = 0
    steps: int = 0
    drafted: list[list[int]] = field(default_factory=list)
    kept: Any = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.says[: self.emitted]

    @property
    def is_over(self) -> bool:
        return self.emitted >= len(self.says)


class Engine:
    """Runs requests as vLLM does: rows of a batch move, requests join, wait and leave, drafts are verified."""

    def __init__(self, drafting: Proposer, rows: int = 64) -> None:
        self.proposer = drafting
        self.requests: Mapping[str, Any] = {}
        self.running: list[Request] = []
        self.drafts: dict[str, list[int]] = {}
        self.ids = np.zeros((rows, WIDTH), dtype=np.int32)
        self.counts = np.zeros(rows, dtype=np.int64)
        self.input_batch = SimpleNamespace(req_ids=[], num_prompt_tokens=np.zeros(rows, dtype=np.int64))

    def add(self, request: Request) -> None:
        admitted = {ADMITTED: request.sources.as_argument()}
        request.kept = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=admitted))
        self.requests = {**self.requests, request.name: request.kept}
        self.running.append(request)

    def wait(self, request: Request) -> None:
        """Take a request out of the batch; it stays known, and may come back."""
        self.running.remove(request)

    def resume(self, request: Request) -> None:
        self.running.insert(0, request)

    def abort(self, request: Request) -> None:
        self.running.remove(request)
        self.requests = {name: kept for name, kept in self.requests.items() if name != request.name}

    def step(self) -> None:
        """One forward for all, their next drafts, and the end of those that are over."""
        sampled, scheduled = [], {}
        for request in self.running:
            draft = self.drafts.get(request.name, [])
            scheduled[request.name] = 1 + len(draft)
            sampled.append(self._verified(request, draft))
        drafts = self._propose(sampled, scheduled)
        self.drafts = dict(zip((request.name for request in self.running), drafts, strict=True))
        for request, draft in zip(self.running, drafts, strict=True):
            request.drafted.append(draft)
        for request in [each for each in self.running if each.is_over]:
            self.abort(request)

    def _verified(self, request: Request, draft: Sequence[int]) -> list[int]:
        rest = request.says[request.emitted :]
        accepted = 0
        while accepted < min(len(draft), len(rest) - 1) and draft[accepted] == rest[accepted]:
            accepted += 1
        emitted = rest[: accepted + 1]
        request.emitted += len(emitted)
        request.steps += 1
        return emitted

    def _propose(self, sampled: list[list[int]], scheduled: dict[str, int]) -> list[list[int]]:
        self.input_batch.req_ids = [request.name for request in self.running]
        for row, request in enumerate(self.running):
            tokens = request.tokens
            self.ids[row, : len(tokens)] = tokens
            self.counts[row] = len(tokens)
            self.input_batch.num_prompt_tokens[row] = len(request.prompt)
        self.proposer.meet(self, scheduled)
        return self.proposer.propose(sampled, self.counts, self.ids, slot_mappings=None)
