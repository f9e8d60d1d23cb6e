"""Drafting at different loads, replayed on a simulated clock: recorded answers, and step times as measured in vLLM."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.pipelines.benchmark.samples import load_samples
from tests.integrations.vllm.fake_engine import Engine, Request, make_proposer
from tests.integrations.vllm.test_request_drafter import lookup

STEP_MS, REQUEST_MS, DRAFT_MS = 28.0, 0.93, 1.16
"""Milliseconds of a step, of each of its requests, and of each request with a draft: fitted on two cores, with a model
of 135 million parameters."""

ROW_MS = (0.05, 0.37, 1.0)
"""Milliseconds of each row: nearly free as on a GPU, as fitted, and expensive."""

LOOKUPS = ((2, 5, 5), (1, 3, 8))
"""vLLM's n-gram drafts of the comparison: minimum and maximum length of the match, number of draft tokens."""


class SimulatedEngine(Engine):
    """An engine whose steps take simulated time.

    Args:
        drafter: A proposer.
        row_ms: Milliseconds of each row.
        now: Attribute ``seconds`` is the time, which the proposer's clock returns.
    """

    def __init__(self, drafter: Any, row_ms: float, now: SimpleNamespace) -> None:
        super().__init__(drafter)
        self._row_ms, self._now, self._noise = row_ms, now, Random(0)

    def step(self) -> None:
        drafts = [len(self.drafts.get(request.name, ())) for request in self.running]
        rows = len(drafts) + sum(drafts)
        ms = STEP_MS + REQUEST_MS * len(drafts) + DRAFT_MS * sum(map(bool, drafts)) + self._row_ms * rows
        self._now.seconds += ms / 1000 * self._noise.uniform(0.85, 1.15)
        super().step()


class Lookup:
    """Drafts as vLLM's n-gram lookup does; none if it has no parameters."""

    def __init__(self, *parameters: int) -> None:
        self._parameters = parameters

    def prepare_step(self, *_: Any) -> None:
        """Do nothing."""

    def propose(self, sampled: Sequence[Any], counts: Any, tokens: Any, **_: Any) -> list[list[int]]:
        if not self._parameters:
            return [[] for _ in sampled]
        return [list(lookup(tokens[at, : counts[at]].tolist(), *self._parameters)) for at in range(len(sampled))]


@pytest.fixture(scope="module")
def answers() -> list[tuple[list[int], list[int]]]:
    """Recorded prompts and answers, with a number for every word and every sign."""
    numbers: dict[str, int] = {}

    def numbered(text: str) -> list[int]:
        return [numbers.setdefault(word, len(numbers)) for word in re.findall(r"\w+|\W", text)]

    return [(numbered(each.prompt), numbered(each.response)[:96]) for each in load_samples("python-docs", limit=32)]


def tokens_per_second(
    answers: Sequence[tuple[list[int], list[int]]], at_once: int, row_ms: float, make: Callable[[SimpleNamespace], Any]
) -> float:
    """Return the throughput of simulated steps.

    Args:
        answers: Prompts and answers.
        at_once: Number of requests that start together.
        row_ms: Milliseconds of each row.
        make: Makes the proposer; it receives the simulated time.
    """
    now = SimpleNamespace(seconds=0.0)
    engine = SimulatedEngine(make(now), row_ms, now)
    for start in range(0, len(answers), at_once):
        for number, (prompt, answer) in enumerate(answers[start : start + at_once]):
            engine.add(Request(f"{start + number}", prompt, answer))
        engine.run()
    return sum(len(answer) for _, answer in answers) / float(now.seconds)


def always(drafter: Lookup) -> Callable[[SimpleNamespace], Lookup]:
    """Return a function that returns this drafter."""
    return lambda _: drafter


@pytest.mark.parametrize("row_ms", ROW_MS)
@pytest.mark.parametrize("at_once", [1, 4, 16, 32])
def test_drafting_is_at_least_as_fast_as_lookups_and_plain_decoding_at_every_load(
    answers: list[tuple[list[int], list[int]]], at_once: int, row_ms: float
) -> None:
    some = answers[: max(8, at_once)]

    def speed(make: Callable[[SimpleNamespace], Any]) -> float:
        return tokens_per_second(some, at_once, row_ms, make)

    ours = speed(lambda now: make_proposer(16, clock=lambda: now.seconds))
    for parameters in LOOKUPS:
        assert ours >= speed(always(Lookup(*parameters)))
    assert ours >= 0.98 * speed(always(Lookup()))
