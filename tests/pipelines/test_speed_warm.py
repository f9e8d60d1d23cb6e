"""`blend-warm`: the recycling table is kept between requests and cleared before a job is repeated."""

from __future__ import annotations

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.methods import methods_by_name
from antiphon.pipelines.benchmark.run import Job
from antiphon.pipelines.benchmark.speed import measure_speed

PROMPT = tuple(b"The hill is 84 feet high, and the hill")


def test_the_warm_drafter_learns_within_a_round_only() -> None:
    language_model = LanguageModel(tiny_model(seed=4), byte_tokenizer(), name="tiny")
    jobs = [Job(PROMPT), Job(PROMPT, references=("another request",))]
    methods = methods_by_name(["blend:8", "blend-warm:8"], None)
    _, cold, warm = measure_speed(language_model, jobs, methods, limit=60, rounds=3, warm_up=2).methods
    texts, others = ([[run.tokens for run in runs] for runs in each.rounds] for each in (warm, cold))
    assert texts == others
    steps = [[run.steps for run in runs] for runs in warm.rounds]
    assert steps[0] == steps[1] == steps[2]
    assert steps[0][0] == cold.rounds[0][0].steps
    assert steps[0][1] < cold.rounds[0][1].steps
