"""Replay: counts the forward passes of recorded answers without running a model."""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel.drafting.drafters import DRAFTERS, Copying, Nothing
from antiphon.accel.testing.drafters import OracleDrafter, WrongDrafter
from antiphon.accel.testing.tiny import byte_tokenizer
from benchmarks import drafting_cost, replay
from benchmarks.drafting_cost import own_seconds
from benchmarks.record import as_line
from benchmarks.replay import replay_samples, replay_steps, tokenize_sample
from tests.pipelines.recorded import SAMPLES, run_program

SAMPLE = SAMPLES[0]
TOKENIZER: Any = byte_tokenizer()


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_steps_spell_the_answer(name: str) -> None:
    recording = tokenize_sample(SAMPLE, TOKENIZER)
    steps = list(replay_steps(recording, DRAFTERS[name](), num_draft_tokens=8))
    assert sum((step.tokens for step in steps), ()) == recording.answer
    assert (steps[0].drafted, len(steps[0].tokens)) == (0, 1), "the first step ends the prefill"
    assert all(step.drafted <= 8 and len(step.tokens) <= step.accepted + 1 for step in steps)
    assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["stop"]


def test_every_forward_counts() -> None:
    recording = tokenize_sample(SAMPLE, TOKENIZER)
    size = len(recording.answer)
    text = recording.prompt + recording.answer
    assert len(list(replay_steps(recording, Nothing(), num_draft_tokens=32))) == size
    assert len(list(replay_steps(recording, WrongDrafter(text, 4), num_draft_tokens=32))) == size
    assert len(list(replay_steps(recording, OracleDrafter(text, 3), num_draft_tokens=32))) == 1 + -(-(size - 1) // 4)


def test_samples_add_up_as_all_tokens_over_all_steps() -> None:
    one, other, both = (replay_samples(each, TOKENIZER, Copying, 32) for each in (SAMPLES[:1], SAMPLES[1:], SAMPLES))
    assert (both.steps, both.tokens) == (one.steps + other.steps, one.tokens + other.tokens)
    assert both.tokens_per_step == both.tokens / both.steps


def test_the_program_prints_the_figures_of_every_drafter(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    options = (file, "--tokenizer", tmp_path / "tokenizer", "--num-draft-tokens", 16, "--json")
    figures = json.loads(run_program(replay.app, *options).stdout)
    by_name = {each["drafter"]: each for each in figures["drafters"]}
    assert list(by_name) == list(DRAFTERS)
    assert by_name["nothing"]["tokens_per_step"] == 1.0
    summary = replay_samples(SAMPLES, TOKENIZER, Copying, 16)
    assert (by_name["copying"]["steps"], by_name["copying"]["tokens"]) == (summary.steps, summary.tokens)
    refused = run_program(replay.app, file, "--tokenizer", tmp_path)
    assert refused.exit_code == 2
    assert "No tokenizer can be loaded from" in refused.stderr


@pytest.mark.exhaustive
def test_drafting_is_measured_for_every_drafter_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    report = drafting_cost.measure_drafting(num_draft_tokens=4, sizes=(300, 900), rounds=1)
    assert [cost.drafter for cost in report.costs] == list(DRAFTERS)
    for cost in report.costs[1:]:
        assert cost.build_ratio == cost.build_ms[900] / cost.build_ms[300]
    assert report.import_seconds > 0


def test_the_time_of_an_import_leaves_out_what_other_libraries_take() -> None:
    report = """import time: self [us] | cumulative | imported package
import time:       100 |        100 |     math
import time:      5000 |       5100 |   torch.nn
import time:     20000 |      25100 | torch
import time:        30 |         30 |   json
import time:         7 |          7 |     torch.extra
import time:        60 |         97 |   antiphon.one
import time:        10 |        137 | antiphon"""
    assert own_seconds(report, ("torch",)) == pytest.approx(100e-6)
