"""OpenVINO GenAI as a method: the export is the model, and what the program says of its run is taken as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.prepacked import Prepacking
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.methods import methods_named
from antiphon.pipelines.benchmark.openvino_genai import GENAI, guessed_tokens
from antiphon.pipelines.benchmark.run import Job
from antiphon.pipelines.benchmark.speed import measure_speed

pytest.importorskip("openvino_genai")

PROMPT = tuple(b"The hill is 84 feet high, and the hill is 84 feet wide; the hill")


@pytest.fixture(scope="module")
def genai_model() -> LanguageModel:
    return LanguageModel(tiny_model(seed=4), byte_tokenizer(), name="tiny")


def test_it_says_what_plain_decoding_says_and_prompt_lookup_takes_fewer_steps(genai_model: LanguageModel) -> None:
    jobs = [Job(PROMPT), Job(PROMPT[:9])]
    methods = methods_named([GENAI, "openvino-genai-lookup", "openvino-genai-lookup:3"], None)
    measured = measure_speed(genai_model, jobs, methods, limit=40, rounds=1, warm_up=0)
    for shown in measured.as_dict():
        assert (shown["identical"], shown["is_peer"]) == (1, True), shown["method"]
    greedy, plain, five, three = measured.methods
    assert plain.steps == greedy.steps
    assert five.steps < three.steps < plain.steps
    for figures in (plain, five, three):
        for run in figures.rounds[0]:
            assert 0 < run.first < run.seconds
            assert run.drafted is None


def test_a_model_whose_layers_are_prepacked_is_exported_all_the_same() -> None:
    model: Any = tiny_model(hidden_size=256, intermediate_size=512)
    language_model = LanguageModel(model, byte_tokenizer(), name="packed")
    engine = engine_of(model)
    engine.prepacking = Prepacking(seconds=lambda multiply, input: 1.0)  # whatever the clock says
    engine.lock.run(engine.own)
    assert len(engine.lock.run(lambda: engine.prepacked)) > 0
    greedy, genai = methods_named([GENAI], None)
    plain, found = (each(language_model, Job(PROMPT), 8) for each in (greedy, genai))
    assert found.tokens == plain.tokens


def test_the_methods_of_one_command_share_their_pipelines() -> None:
    _, plain, one, other = methods_named([GENAI, "openvino-genai-lookup:3", "openvino-genai-lookup:8"], None)
    guessing: Any = [plain, one, other]
    assert [method.guessed for method in guessing] == [0, 3, 8]
    assert len({id(method.pipelines) for method in guessing}) == 1


@pytest.mark.parametrize("own", ["0", "many", "-3"])
def test_guesses_that_are_no_number_are_refused(own: str) -> None:
    with pytest.raises(ValueError, match=f"openvino-genai-lookup:{own} says no number of tokens; give 1 or more"):
        guessed_tokens(own)


def test_a_replay_is_refused(genai_model: LanguageModel) -> None:
    (_, method) = methods_named([GENAI], None)
    with pytest.raises(ValueError, match="openvino-genai cannot be led along a recorded answer; give a model"):
        method(genai_model, Job(PROMPT, (), (1, 2, 3)), 3)


def test_a_model_whose_attention_would_be_another_one_is_refused(tmp_path: Path) -> None:
    model: Any = tiny_model("mistral", sliding_window=8)
    (_, method) = methods_named([GENAI], None)
    language_model = LanguageModel(model, byte_tokenizer(), name="windowed")
    with pytest.raises(ValueError, match="cannot be exported for OpenVINO GenAI: it has sliding windows"):
        method(language_model, Job(PROMPT), 3)


def test_a_precision_that_the_program_is_not_measured_in_is_refused() -> None:
    model: Any = tiny_model()
    language_model = LanguageModel(model.to(torch.float16), byte_tokenizer(), name="half")
    (_, method) = methods_named([GENAI], None)
    with pytest.raises(ValueError, match="measured on CPUs in float32 or bfloat16; the model is float16 on cpu"):
        method(language_model, Job(PROMPT), 3)
