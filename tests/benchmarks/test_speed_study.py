"""The speed study: further methods, shuffled references, random weights, llama.cpp, and the bandwidth floor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.run import Job
from antiphon.pipelines.benchmark.shapes import ARCHITECTURES
from antiphon.pipelines.benchmark.speed import measure_speed
from benchmarks import bandwidth_floor, speed, start_up
from benchmarks.bandwidth_floor import COPIED, cache_bytes, measure_floor, read_bytes
from benchmarks.methods import study_methods
from benchmarks.record import as_line
from tests.pipelines.recorded import SAMPLES, run_program

PROMPT = tuple(b"The hill is 84 feet high, and the hill")
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 96, "vocab_size": 49_152}


def test_the_warm_drafter_learns_within_a_round_only() -> None:
    language_model = LanguageModel(tiny_model(seed=4), byte_tokenizer(), name="tiny")
    jobs = [Job(PROMPT), Job(PROMPT, references=("another request",))]
    methods = study_methods(["blend:8", "blend-warm:8"], None)
    _, cold, warm = measure_speed(language_model, jobs, methods, limit=60, rounds=3, warm_up=2).methods
    texts, others = ([[run.tokens for run in runs] for runs in each.rounds] for each in (warm, cold))
    assert texts == others
    steps = [[run.steps for run in runs] for runs in warm.rounds]
    assert steps[0] == steps[1] == steps[2]
    assert steps[0][0] == cold.rounds[0][0].steps
    assert steps[0][1] < cold.rounds[0][1].steps


def test_lookahead_windows_get_all_their_rows() -> None:
    methods: Any = study_methods(["lookahead:9"], 8, ["7,5,7", "15,5,3"], unread=True)[1:]
    assert [method.num_draft_tokens for method in methods] == [9, 55, 55, 71, 71]
    drafters = [method.drafter() for method in methods[1:]]
    settings = [(each.width, each.ngram, each.guesses, each.prompt_as_reference) for each in drafters]
    assert settings == [(7, 5, 7, True), (7, 5, 7, False), (15, 5, 3, True), (15, 5, 3, False)]


def test_shuffled_samples_have_references_of_other_samples() -> None:
    shuffled = speed.with_other_references(SAMPLES)
    assert [sample.references for sample in shuffled] == [SAMPLES[place].references for place in (1, 2, 0)]
    assert [sample.query for sample in shuffled] == [sample.query for sample in SAMPLES]
    with pytest.raises(ValueError, match="There is only 1 sample"):
        speed.with_other_references(SAMPLES[:1])


def test_the_bandwidth_floor_counts_the_bytes_that_a_step_reads() -> None:
    apart, tied = tiny_model(), tiny_model(tie_word_embeddings=True)
    table: Any = apart.get_input_embeddings().weight
    assert read_bytes(apart) == sum(each.nbytes for each in apart.parameters()) - table.nbytes
    assert read_bytes(tied) == sum(each.nbytes for each in tied.parameters())
    config = apart.config
    head = config.hidden_size // config.num_attention_heads
    assert cache_bytes(apart) == 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * head
    floor = measure_floor(apart, rows=(4,), context=20, copied=2**20)
    assert floor.seconds == (read_bytes(apart) + 20 * cache_bytes(apart)) / floor.rate
    shown = floor.as_dict()
    assert (shown["rows"], shown["context"]) == ([1, 4], 20)
    assert shown["of_floor"][0] == pytest.approx(floor.steps[1] / floor.seconds, rel=0.01)


@pytest.mark.exhaustive
def test_programs_decode_with_random_weights_and_are_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "qwen2.5-1.5b", ARCHITECTURES["qwen2.5-1.5b"] | SMALL)
    monkeypatch.setitem(COPIED, "cpu", 2**20)
    monkeypatch.setattr(start_up, "STARTS", 1)
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    options = (file, "--max-new-tokens", 40, "--rounds", 1, "--dtype", "float32", "--shuffle", "--json")
    for model in (("--model", "qwen2.5-1.5b"), ("--shape", "qwen2.5-1.5b")):
        shown = run_program(speed.app, *options, *model, "--method", "blend", "--method", "blend-warm")
        assert shown.exit_code == 0, shown.stderr
        facts = json.loads(shown.stdout.splitlines()[-1])
        assert (facts["model"], facts["replayed"], facts["shuffled"]) == ("qwen2.5-1.5b", True, True)
        assert {each["identical"] for each in facts["methods"]} == {1}
    starts = {each["program"]: each["seconds"] for each in facts["starts"]}
    assert starts.keys() >= {"transformers", "antiphon"}
    assert min(starts.values()) > 0
    program = (bandwidth_floor.app, "--model", "qwen2.5-1.5b", "--rows", 6, "--context", 16, "--device", "cpu")
    facts = json.loads(run_program(*program, "--json").stdout.splitlines()[-1])
    assert (facts["kind"], facts["rows"], facts["context"]) == ("floor", [1, 2, 4, 6], 16)
