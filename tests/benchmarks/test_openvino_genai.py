"""OpenVINO GenAI as a baseline: its export gives the model's outputs, and its own times are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.run import Job
from antiphon.pipelines.benchmark.speed import measure_speed
from benchmarks.methods import study_methods
from benchmarks.openvino_genai import GENAI

pytest.importorskip("openvino_genai")

from antiphon.accel.engines.openvino.runtime import core
from antiphon.accel.engines.openvino.store import GRAPH
from benchmarks.stateful_graph import export_stateful
from tests.accel.openvino.builders import in_precision, unpacked_bytes

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

PROMPT = tuple(b"The hill is 84 feet high, and the hill is 84 feet wide; the hill")


@pytest.fixture(scope="module")
def genai_model() -> LanguageModel:
    return LanguageModel(tiny_model(seed=4), byte_tokenizer(), name="tiny")


def test_its_outputs_are_greedy_and_prompt_lookup_takes_fewer_steps(genai_model: LanguageModel) -> None:
    jobs = [Job(PROMPT), Job(PROMPT[:9])]
    methods = study_methods([GENAI, "openvino-genai-lookup", "openvino-genai-lookup:3"], None)
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


def test_a_model_whose_attention_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    model: Any = tiny_model("mistral", sliding_window=8)
    (_, method) = study_methods([GENAI], None)
    language_model = LanguageModel(model, byte_tokenizer(), name="windowed")
    with pytest.raises(ValueError, match="cannot be exported for OpenVINO GenAI: it has sliding windows"):
        method(language_model, Job(PROMPT), 3)


def test_its_export_has_no_unpacked_16_bit_weights() -> None:
    model = in_precision(tiny_model(hidden_size=128, seed=5), torch.bfloat16)
    assert unpacked_bytes(core().read_model(export_stateful(model) / GRAPH)) == 0
