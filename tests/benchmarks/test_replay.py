"""Replay: counts the forward passes of recorded answers without running a model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel.drafting.draft import Accepted, Draft, Tokens, chain
from antiphon.accel.drafting.drafters import DRAFTERS, Copying, Nothing
from antiphon.accel.testing.drafters import OracleDrafter, WrongDrafter
from antiphon.accel.testing.tiny import byte_tokenizer
from benchmarks import drafting_cost, replay
from benchmarks.drafting_cost import own_seconds
from benchmarks.record import as_line
from benchmarks.replay import Recording, replay_samples, replay_steps, tokenize_sample
from tests.pipelines.recorded import SAMPLES, run_program

SAMPLE = SAMPLES[0]
TOKENIZER: Any = byte_tokenizer()


class RecordingDrafter:
    """Drafts the chain ``guess`` in each step, and records the arguments of all calls."""

    def __init__(self, guess: Tokens) -> None:
        self.guess = guess
        self.begun: list[Any] = []
        self.contexts: list[tuple[int, ...]] = []
        self.seen: list[tuple[Draft, Accepted, Any]] = []

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        self.begun.append((tuple(prompt), tuple(map(tuple, references))))

    def propose(self, context: Tokens, budget: int) -> Draft:
        self.contexts.append(tuple(context))
        return chain(self.guess)

    def observe(self, draft: Draft, accepted: Accepted, logits: Any) -> None:
        self.seen.append((draft, accepted, logits))


def test_only_the_prompt_gets_special_tokens_and_the_answer_ends() -> None:
    recording = tokenize_sample(SAMPLE, TOKENIZER)
    assert TOKENIZER.decode(recording.prompt[1:]) == SAMPLE.prompt
    assert recording.prompt[0] == TOKENIZER.bos_token_id
    assert TOKENIZER.bos_token_id not in (*recording.answer, *recording.references[0])
    assert recording.answer[-1] == TOKENIZER.eos_token_id
    assert TOKENIZER.decode(recording.answer[:-1]) == SAMPLE.response
    assert [TOKENIZER.decode(each) for each in recording.references] == list(SAMPLE.references)


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


def test_a_drafter_is_called_as_in_decoding() -> None:
    recording = Recording((1, 2), ((3, 4),), (5, 6, 7, 5, 6, 9))
    drafter = RecordingDrafter((6, 7))
    list(replay_steps(recording, drafter, num_draft_tokens=2))
    assert drafter.begun == [((1, 2), ((3, 4),))]
    assert drafter.contexts == [(1, 2, 5), (1, 2, 5, 6, 7, 5)]
    assert [(len(draft), accepted.tokens) for draft, accepted, _ in drafter.seen] == [
        (0, (5,)), (2, (6, 7, 5)), (2, (6, 9)),
    ]  # fmt: skip
    assert {logits for *_, logits in drafter.seen} == {None}


def test_drafts_are_trimmed_to_the_budget_and_the_last_step_to_the_answer() -> None:
    recording = Recording((1,), (), (5, 6, 7, 8, 9))
    steps = list(replay_steps(recording, RecordingDrafter((6, 7, 8, 9)), num_draft_tokens=2))
    assert [(step.drafted, step.tokens) for step in steps] == [(0, (5,)), (2, (6, 7, 8)), (2, (9,))]
    with pytest.raises(ValueError, match="num_draft_tokens is -1"):
        list(replay_steps(recording, Nothing(), num_draft_tokens=-1))


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
