"""Speed benchmark: every method emits the model's own greedy output, and the figures are consistent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer
from antiphon.pipelines.benchmark.jobs import make_jobs
from antiphon.pipelines.benchmark.methods import (
    GREEDY,
    NAMES,
    methods_by_name,
)
from antiphon.pipelines.benchmark.run import Job, MethodRun
from antiphon.pipelines.benchmark.speed import measure_speed
from tests.families.table import tiny_model
from tests.pipelines.recorded import SAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def follower_model() -> LanguageModel:
    """A separate model for this file, because the tests add and remove hooks."""
    return LanguageModel(tiny_model(max_position_embeddings=1024), byte_tokenizer(), name="tiny")


def _plain(language_model: LanguageModel, job: Job) -> list[int]:
    model: Any = language_model.model
    ids = torch.tensor([job.prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    return list(map(int, output[0]))


def test_all_methods_give_the_model_s_own_greedy_output(follower_model: LanguageModel) -> None:
    jobs = make_jobs(follower_model, SAMPLES[:2], limit=12)
    measured = measure_speed(follower_model, jobs, methods_by_name(NAMES, 8), limit=12, rounds=1)
    for figures in measured.as_dict():
        assert figures["identical"] == 1, figures["method"]
    plain = [_plain(follower_model, job)[len(job.prompt) :] for job in jobs]
    assert [list(run.tokens) for run in measured.methods[0].rounds[0]] == plain


class Noting:
    """A method that computes nothing: notes each call in ``order``, and is interrupted at call number ``ends_at``."""

    is_baseline = False

    def __init__(self, name: str, order: list[tuple[str, int]], ends_at: int | None = None) -> None:
        self.name, self.order, self.ends_at = name, order, ends_at

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        if len(self.order) == self.ends_at:
            raise KeyboardInterrupt
        self.order.append((self.name, len(job.prompt)))
        return MethodRun((0, 1, 2), seconds=2.0, first_token_seconds=1.0, steps=2, drafted=0)


TWO_JOBS = [Job((1,)), Job((1, 2))]


def test_methods_take_turns(follower_model: LanguageModel) -> None:
    order: list[tuple[str, int]] = []
    methods = [Noting(GREEDY, order), Noting("blend", order)]
    measure_speed(follower_model, TWO_JOBS, methods, limit=3, rounds=2, warm_up=1)
    one_round = [(GREEDY, 1), ("blend", 1), (GREEDY, 2), ("blend", 2)]
    assert order == [(GREEDY, 1), ("blend", 1), *one_round, *one_round]


@pytest.mark.parametrize(("calls", "rounds", "jobs"), [(3, 1, 1), (7, 1, 2), (9, 2, 2)])
def test_an_interruption_keeps_what_every_method_has_decoded(
    calls: int, rounds: int, jobs: int, follower_model: LanguageModel
) -> None:
    order: list[tuple[str, int]] = []
    methods = [Noting(GREEDY, order, calls), Noting("blend", order, calls)]
    measured = measure_speed(follower_model, TWO_JOBS, methods, limit=3, rounds=3, warm_up=0).methods
    assert [[len(each) for each in figures.rounds] for figures in measured] == [[jobs] * rounds] * 2
