"""Replays in the speed study: every program emits the recorded answers."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.drafters import DRAFTERS
from antiphon.accel.engines.selection import select_engine
from antiphon.pipelines.benchmark.methods import (
    GREEDY,
    NAMES,
    PROMPT_LOOKUP,
    Method,
    methods_by_name,
)
from antiphon.pipelines.benchmark.speed import Speed, measure_speed
from benchmarks import forced_methods
from benchmarks.forced_methods import ReplayJob, replay_jobs, replaying
from benchmarks.methods import study_methods
from benchmarks.openvino_genai import GENAI
from benchmarks.teacher_forcing import TeacherForcing
from tests.families.table import tiny_model
from tests.pipelines.recorded import SAMPLES
from tests.tiny import EOS, byte_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def follower_model() -> LanguageModel:
    """A separate model for this file, because the tests add and remove hooks."""
    return LanguageModel(tiny_model(max_position_embeddings=1024), byte_tokenizer(), name="tiny")


def replayed(language_model: LanguageModel) -> list[ReplayJob]:
    return replay_jobs(language_model, SAMPLES, limit=60)


def measured_replay(
    language_model: LanguageModel, jobs: Sequence[ReplayJob], methods: Sequence[Method], *, warm_up: int = 0
) -> Speed:
    with replaying(language_model, methods, limit=60) as forced:
        return measure_speed(language_model, jobs, forced, limit=60, rounds=1, warm_up=warm_up)


def test_every_method_replays_the_recorded_answers(follower_model: LanguageModel) -> None:
    jobs = replayed(follower_model)
    methods = methods_by_name([*NAMES, "blend:3"], 16)
    measured = measured_replay(follower_model, jobs, methods)
    assert [figures.name for figures in measured.methods] == [*PROMPT_LOOKUP_FIRST, *DRAFTERS, "blend:3"]
    for figures in measured.methods:
        assert [run.tokens for run in figures.rounds[0]] == [job.answer for job in jobs], figures.name
    steps = {figures.name: figures.steps for figures in measured.methods}
    plain = sum(len(job.answer) - 1 for job in jobs)
    assert steps[GREEDY] == steps["nothing"] == plain
    assert max(steps["hf-lookup"], steps["hf-lookup-n3"], steps["blend"], steps["trie"]) < plain
    assert steps["blend"] < steps["blend:3"]


PROMPT_LOOKUP_FIRST = (GREEDY, *PROMPT_LOOKUP)


def test_teacher_forcing_changes_only_the_recorded_logits(follower_model: LanguageModel) -> None:
    model: Any = follower_model.model
    ids = torch.tensor([[256, *b"It opens at nine."]])
    positions = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        plain = model(input_ids=ids, position_ids=positions).logits
        with TeacherForcing(model, end=EOS, longest=10) as follower:
            follower.follow(5, [70, 71, 72])
            led = model(input_ids=ids, position_ids=positions, logits_to_keep=16).logits
    assert led.argmax(-1)[0, 2:].tolist() == [70, 71, 72, *[EOS] * 11]
    changed = (led != plain[:, -16:]).sum(-1)
    assert changed.tolist() == [[1] * 16]


class Silent(TeacherForcing):
    """Forces no token."""

    def _force(self, model: Any, args: Any, arguments: Any, output: Any) -> None:
        return None


def test_a_replay_of_other_tokens_is_detected(follower_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced_methods, "TeacherForcing", Silent)
    with pytest.raises(ValueError, match=r"hf-greedy emitted \d+ tokens that differ from the \d+ recorded ones at"):
        measured_replay(follower_model, replayed(follower_model), methods_by_name([], 8))
    assert not follower_model.model._forward_hooks, "the hook is gone all the same"


PROMPT = tuple(b"The hill is 84 feet high, and the hill is 84 feet wide; the hill")


@pytest.fixture(scope="module")
def genai_model() -> LanguageModel:
    pytest.importorskip("openvino_genai")
    return LanguageModel(tiny_model(seed=4), byte_tokenizer(), name="tiny")


def test_every_program_emits_the_recorded_answers_in_a_replay(genai_model: LanguageModel) -> None:
    answers = [
        (*b"84 feet high, and it is wide", EOS),
        (*b"a hill of 84 feet", EOS),
        (*b"is wide; the hill is high", EOS),
    ]
    references = (PROMPT[:40], PROMPT[20:], PROMPT[:9])
    jobs = [
        ReplayJob(PROMPT[: 9 + 20 * at], (bytes(references[at]).decode(),), each) for at, each in enumerate(answers)
    ]
    names = [GENAI, "openvino-genai-lookup:3", "openvino-genai-lookup:8", "blend@openvino"]
    measured = measured_replay(genai_model, jobs, study_methods(names, None), warm_up=1)
    for figures in measured.methods:
        assert [run.tokens for run in figures.rounds[0]] == answers, figures.name
    steps = {figures.name: figures.steps for figures in measured.methods}
    assert steps[GENAI] == steps["hf-greedy"] > steps["blend@openvino"] > 0
    openvino_engine: Any = select_engine(genai_model.model, "openvino").engine
    assert "run" not in vars(openvino_engine.graph), "the engine is as before"
