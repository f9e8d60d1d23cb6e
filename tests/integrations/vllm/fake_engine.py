"""Engines that run a `Proposer` without vLLM, with what vLLM's Model Runner V1 offers to a drafter."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from antiphon.integrations.vllm.admission import ADMITTED, AdmittedSources, Sources
from antiphon.integrations.vllm.proposer import Proposer

NO_SOURCES = Sources()

MAX_TOKENS = 8192
VOCAB_SIZE = 1_000_000


def make_proposer(num_draft_tokens: int = 12, *, vocab_size: int = VOCAB_SIZE, **options: Any) -> Proposer:
    """Return a proposer that patches nothing, since these engines call it themselves."""
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=num_draft_tokens),
        model_config=SimpleNamespace(get_vocab_size=lambda: vocab_size),
    )
    return Proposer(config, patch=lambda _: None, **options)


def install_modules(
    monkeypatch: pytest.MonkeyPatch, contents: Mapping[str, Mapping[str, Any]]
) -> dict[str, ModuleType]:
    """Return modules with these names and contents; they and their packages are importable until the test ends."""
    packages = {name[:end] for name in contents for end, sign in enumerate(name) if sign == "."}
    modules = {name: ModuleType(name) for name in packages | contents.keys()}
    for name, module in modules.items():
        vars(module).update({"__path__": []} if name in packages else {}, **contents.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def sampling_params(sources: Sources) -> SimpleNamespace:
    """Return sampling parameters that hold these sources, as after admission."""
    return SimpleNamespace(extra_args={ADMITTED: AdmittedSources(sources, {})})


@dataclass
class Request:
    """A request whose answer is known: the tokens that a greedy model would emit.

    Attributes:
        name: Id of the request.
        prompt: Token ids of the prompt.
        answer: Token ids of the whole answer.
        sources: References and prediction.
        emitted: Number of answer tokens emitted so far.
        steps: Number of forward passes so far.
        drafts: The draft of each step.
        state: The engine's state of the request.
    """

    name: str
    prompt: list[int]
    answer: list[int]
    sources: Sources = NO_SOURCES
    emitted: int = 0
    steps: int = 0
    drafts: list[list[int]] = field(default_factory=list)
    state: Any = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer[: self.emitted]

    @property
    def is_finished(self) -> bool:
        return self.emitted >= len(self.answer)


class Engine:
    """Runs requests as Model Runner V1 does: they join, wait, move between rows and leave, and drafts are verified."""

    def __init__(self, proposer: Proposer, rows: int = 64) -> None:
        self.proposer = proposer
        self.requests: Mapping[str, Any] = {}
        self.running: list[Request] = []
        self.drafts: dict[str, list[int]] = {}
        self.ids = np.zeros((rows, MAX_TOKENS), dtype=np.int32)
        self.counts = np.zeros(rows, dtype=np.int64)
        self.input_batch = SimpleNamespace(req_ids=[], num_prompt_tokens=np.zeros(rows, dtype=np.int64))

    def add(self, request: Request) -> None:
        request.state = SimpleNamespace(sampling_params=sampling_params(request.sources))
        self.requests = {**self.requests, request.name: request.state}
        self.running.append(request)

    def preempt(self, request: Request) -> None:
        """Take a request out of the batch; the engine keeps its state."""
        self.running.remove(request)

    def resume(self, request: Request) -> None:
        self.running.insert(0, request)

    def abort(self, request: Request) -> None:
        self.running.remove(request)
        self.requests = {name: state for name, state in self.requests.items() if name != request.name}

    def step(self) -> None:
        """Run one forward pass for all running requests, propose their next drafts, and end finished requests."""
        sampled, scheduled = [], {}
        for request in self.running:
            draft = self.drafts.get(request.name, [])
            scheduled[request.name] = 1 + len(draft)
            sampled.append(self._verify(request, draft))
        drafts = self._propose(sampled, scheduled)
        self.drafts = dict(zip((request.name for request in self.running), drafts, strict=True))
        for request, draft in zip(self.running, drafts, strict=True):
            request.drafts.append(draft)
        for request in [each for each in self.running if each.is_finished]:
            self.abort(request)

    def run(self) -> None:
        """Run steps until every request has ended."""
        while self.running:
            self.step()

    def _verify(self, request: Request, draft: Sequence[int]) -> list[int]:
        rest = request.answer[request.emitted :]
        accepted = 0
        while accepted < min(len(draft), len(rest) - 1) and draft[accepted] == rest[accepted]:
            accepted += 1
        emitted = rest[: accepted + 1]
        request.emitted += len(emitted)
        request.steps += 1
        return emitted

    def fill_batch(self) -> None:
        """Write the tokens of the running requests into the batch."""
        self.input_batch.req_ids = [request.name for request in self.running]
        for row, request in enumerate(self.running):
            tokens = request.tokens
            self.ids[row, : len(tokens)] = tokens
            self.counts[row] = len(tokens)
            self.input_batch.num_prompt_tokens[row] = len(request.prompt)

    def _propose(self, sampled: list[list[int]], scheduled: dict[str, int]) -> list[list[int]]:
        self.fill_batch()
        self.proposer.prepare_step(self, scheduled)
        return self.proposer.propose(sampled, self.counts, self.ids, slot_mappings=None)
