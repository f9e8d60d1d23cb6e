"""OpenVINO GenAI as a baseline: its export gives the model's outputs, and its own times are reported."""

from __future__ import annotations

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.methods import methods_by_name
from antiphon.pipelines.benchmark.openvino_genai import GENAI
from antiphon.pipelines.benchmark.run import Job
from antiphon.pipelines.benchmark.speed import measure_speed

pytest.importorskip("openvino_genai")


pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

PROMPT = tuple(b"The hill is 84 feet high, and the hill is 84 feet wide; the hill")


@pytest.fixture(scope="module")
def genai_model() -> LanguageModel:
    return LanguageModel(tiny_model(seed=4), byte_tokenizer(), name="tiny")


def test_its_outputs_are_greedy_and_prompt_lookup_takes_fewer_steps(genai_model: LanguageModel) -> None:
    jobs = [Job(PROMPT), Job(PROMPT[:9])]
    methods = methods_by_name([GENAI, "openvino-genai-lookup", "openvino-genai-lookup:3"], None)
    measured = measure_speed(genai_model, jobs, methods, limit=40, rounds=1, warm_up=0)
    for shown in measured.as_dict():
        assert (shown["identical"], shown["is_baseline"]) == (1, True), shown["method"]
    greedy, plain, five, three = measured.methods
    assert plain.steps == greedy.steps
    assert five.steps < three.steps < plain.steps
    for figures in (plain, five, three):
        for run in figures.rounds[0]:
            assert 0 < run.first_token_seconds < run.seconds
            assert run.drafted is None
