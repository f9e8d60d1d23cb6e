"""vLLM study: jobs of the engines, figures of their outputs, and engines that end early."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines.benchmark.samples import load_samples
from benchmarks.record import as_line
from benchmarks.vllm.engines import SPECULATION, VLLMSettings, open_engines
from benchmarks.vllm.measure import (
    BatchFigures,
    figures_with_ratios,
    measure_vllm,
    median_figures,
    vllm_jobs,
)
from benchmarks.vllm.worker import Decoded, EngineAnswer
from tests.pipelines.recorded import SAMPLES, antiphon

FAKE = Path(__file__).parent / "fake_vllm"


@pytest.fixture
def settings() -> VLLMSettings:
    """Settings for engines of the fake vLLM, which run in this Python environment."""
    path = os.pathsep.join([str(FAKE), *sys.path])
    return VLLMSettings(sys.executable, "here", "float32", 512, 4, environment={"PYTHONPATH": path})


class RecordingEngine:
    """An engine that records its jobs and takes a second per token."""

    def __init__(self, name: str, pace: float = 1.0) -> None:
        self.name, self.pace = name, pace
        self.jobs: list[list[Mapping[str, Any]]] = []

    def decode(self, jobs: Sequence[Mapping[str, Any]], limit: int) -> Decoded:
        self.jobs.append(list(jobs))
        answers = [EngineAnswer(list(range(limit)), limit // 2, 5, 0.1) for _ in jobs]
        return Decoded(answers, 2.0, limit * len(jobs) / self.pace, limit * len(jobs))


def jobs(count: int) -> list[dict[str, Any]]:
    return [{"prompt": [number, 3], "sources": {"references": [f"{number}"]}} for number in range(count)]


def test_all_methods_are_asked_the_same_prompts_in_turn_and_none_twice() -> None:
    engines = [RecordingEngine("plain"), RecordingEngine("suffix"), RecordingEngine("antiphon")]
    figures = measure_vllm(engines, jobs(10), batches=[1, 4], limit=6, least=3)
    warm_up, *single = [[job["prompt"][0] for job in each] for each in engines[0].jobs]
    assert (warm_up, single) == ([9], [[0], [1], [2], [3, 4, 5, 6]])
    assert [(each.name, each.at_once, len(each.outputs)) for each in figures] == [
        (name, at_once, count) for at_once, count in ((1, 3), (4, 4)) for name in ("plain", "suffix", "antiphon")
    ]
    for engine in engines:
        assert [[job["prompt"] for job in each] for each in engine.jobs] == [
            [job["prompt"] for job in each] for each in engines[0].jobs
        ]
        told = [bool(job["sources"]) for each in engine.jobs for job in each]
        assert told == [engine.name == "antiphon"] * 8, "only ours gets the sources of drafts"


def test_too_few_prompts_and_no_plain_decoding_are_refused() -> None:
    with pytest.raises(ValueError, match="There are 4 prompts; batch sizes 1, 4 with 2 prompts or more and 1 to warm"):
        measure_vllm([RecordingEngine("plain")], jobs(4), batches=[1, 4], limit=6, least=2)
    with pytest.raises(ValueError, match="'plain' is not among the methods"):
        measure_vllm([RecordingEngine("suffix")], jobs(4), batches=[1], limit=6, least=2)


def test_ratios_are_of_the_paces_without_prompts_and_of_the_better_ngram() -> None:
    engines = [
        RecordingEngine("plain", 10),
        RecordingEngine("ngram-5", 12),
        RecordingEngine("ngram-8", 16),
        RecordingEngine("antiphon", 24),
    ]
    figures = measure_vllm(engines, jobs(3), batches=[1], limit=6, least=2)
    figures[1].decoded.answers[0].tokens[2] = 99
    plain, ngram, _, ours = figures_with_ratios(figures)
    assert (plain["x_plain"], ours["x_plain"], ours["x_ngram"], ours["x_suffix"]) == (1.0, 2.4, 1.5, None)
    assert (ours["tokens_per_step"], ours["drafted"], ours["accepted"], ours["x_plain_whole"]) == (2.0, 5.0, 3.0, 1.0)
    assert (ngram["identical"], ours["identical"]) == (0.5, 1.0)


def test_figures_of_several_rounds_are_medians_with_the_extremes_of_the_ratios() -> None:
    rounds = []
    for pace in (20, 24, 14):
        engines = [RecordingEngine("plain", 10), RecordingEngine("ngram-8", 16), RecordingEngine("suffix", 12)]
        figures = measure_vllm([*engines, RecordingEngine("antiphon", pace)], jobs(3), batches=[1], limit=6, least=2)
        rounds.append(figures_with_ratios(figures))
    rounds[1][3]["identical"] = 0.5
    rounds[2].reverse()
    ours = median_figures(rounds)[3]
    assert ours["method"] == "antiphon"
    assert [ours[f"x_lookup{each}"] for each in ("", "_least", "_most")] == [1.25, 0.875, 1.5]
    assert [ours[f"x_plain{each}"] for each in ("", "_least")] == [2.0, 1.4]
    assert (ours["requests"], ours["identical"], ours["rounds"]) == (2, 0.5, 3)
    alone = median_figures(
        [figures_with_ratios(measure_vllm([RecordingEngine("plain")], jobs(3), batches=[1], limit=6, least=2))]
    )
    assert [alone[0][key] for key in ("x_lookup", "x_lookup_least", "x_lookup_most")] == [None] * 3


def test_an_interruption_keeps_the_batch_sizes_that_were_measured() -> None:
    class Interrupted(RecordingEngine):
        def decode(self, jobs: Sequence[Mapping[str, Any]], limit: int) -> Decoded:
            if len(jobs) == 2:
                raise KeyboardInterrupt
            return super().decode(jobs, limit)

    engines = [RecordingEngine("plain"), Interrupted("antiphon")]
    figures = measure_vllm(engines, jobs(7), batches=[1, 2, 3], limit=6, least=1)
    assert [(each.name, each.at_once) for each in figures] == [("plain", 1), ("antiphon", 1)]


def test_a_worker_counts_steps_drafts_and_the_time_beside_prompts(settings: VLLMSettings) -> None:
    with open_engines(["plain", "ngram-8", "antiphon"], settings) as engines:
        assert {engine.version for engine in engines} == {"0.0.fake"}
        plain, ngram, ours = [
            engine.decode([{"prompt": [5, 6], "sources": {"references": ["a"]}}, {"prompt": [7], "sources": {}}], 11)
            for engine in engines
        ]
    assert [answer.tokens for answer in plain.answers] == [list(range(11, 22)), list(range(7, 18))]
    assert [each.tokens for each in ours.answers] == [each.tokens for each in plain.answers]
    assert [answer.steps for answer in plain.answers] == [11, 11]
    assert [answer.steps for answer in ngram.answers] == [3, 5], "what a request brings is its engine's to use"
    assert [answer.drafted for answer in ours.answers] == [14, 28]
    assert plain.emitted == 20, "the first step reads prompts"
    assert 0 < plain.decoding < plain.seconds


def test_an_engine_that_ends_leaves_its_last_words(settings: VLLMSettings) -> None:
    nowhere = VLLMSettings(settings.python, "nowhere", "float32", 512, 4, environment=settings.environment)
    with (
        pytest.raises(ValueError, match=r"(?s)vLLM with plain has ended.*there is no model 'nowhere'"),
        open_engines(["plain"], nowhere),
    ):
        pass
    with (
        pytest.raises(ValueError, match="no method 'n-gram'; choose from plain, ngram-5"),
        open_engines(["n-gram"], settings),
    ):
        pass


def test_settings_are_vllms_own_words(settings: VLLMSettings) -> None:
    plain, ours = settings.arguments("plain"), settings.arguments("antiphon")
    assert "speculative_config" not in plain
    assert ours.items() >= plain.items(), "everything else is the same"
    assert ours["speculative_config"]["model"] == "antiphon.integrations.vllm.Proposer"
    assert not plain["enable_prefix_caching"]
    ngrams = [SPECULATION[name] or {} for name in ("ngram-5", "ngram-8")]
    bounds = [[each[f"prompt_lookup_{end}"] for end in ("min", "max")] for each in ngrams]
    assert bounds == [[2, 5], [1, 3]]
    assert [each["num_speculative_tokens"] for each in ngrams] == [5, 8]


def test_a_head_drafts_alone_and_together_with_references(settings: VLLMSettings) -> None:
    with_head = replace(settings, head="folder")
    alone, both = (with_head.arguments(name)["speculative_config"] for name in ("eagle", "antiphon-eagle"))
    assert [each["model"] for each in (alone, both)] == ["folder"] * 2
    assert both["disable_padded_drafter_batch"]
    assert "model" not in settings.arguments("ngram-5")["speculative_config"]
    with (
        pytest.raises(ValueError, match="'antiphon-eagle' needs an EAGLE head"),
        open_engines(["antiphon-eagle"], settings),
    ):
        pass
    engines = [RecordingEngine(name) for name in ("plain", "eagle", "antiphon-eagle")]
    measure_vllm(engines, jobs(2), batches=[1], limit=6, least=1)
    assert [bool(engine.jobs[0][0]["sources"]) for engine in engines] == [False, False, True]


def test_what_stands_in_a_prompt_and_what_is_only_drafted_from(tiny: LanguageModel) -> None:
    samples = SAMPLES[:2]
    read = vllm_jobs(tiny, samples, "passages", 1)
    predicted, remembered = vllm_jobs(tiny, samples, "prediction", 1), vllm_jobs(tiny, samples, "answers", 1)
    assert [len(job["sources"]["references"]) for job in read] == [1, 1]
    assert [job["prompt"] for job in predicted] == [job["prompt"] for job in remembered]
    assert all(len(one["prompt"]) > len(other["prompt"]) for one, other in zip(read, predicted, strict=True))
    assert predicted[0]["sources"] == {"prediction": "\n".join(samples[0].references)}
    assert remembered[0]["sources"]["references"] == [text for sample in samples for text in sample.references]
    with pytest.raises(ValueError, match="sources is 'all'"):
        vllm_jobs(tiny, samples, "all", 1)


def test_the_edits_are_code_that_is_not_in_its_prompt() -> None:
    samples = load_samples("edits")
    assert len(samples) == 21, "twenty, and one to warm up"
    assert all(len(each.references) == 1 and each.references[0] != each.response for each in samples)
    assert not any(each.references[0][:40] in each.prompt for each in samples)


def test_the_command_shows_a_table_for_every_batch_size(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), *sys.path]))
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    options = ["--model", str(tiny_folder), "--method", "plain", "--method", "antiphon", "--batch", "1", "--batch", "2"]
    more = ["--limit", "1", "--warm-up", "0", "--passages", "1", "--max-new-tokens", "8", "--dtype", "float32"]
    done = antiphon("bench", "vllm", file, *options, *more, "--rounds", "2", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["kind"], facts["vllm"], list(facts["batches"])) == ("vllm", "0.0.fake", ["1", "2"])
    assert [row["tokens_per_step"] for row in facts["batches"]["1"]] == [1.0, 2.667]
    assert [row["method"] for row in facts["batches"]["2"]] == ["plain", "antiphon"]
    assert "2 requests, 2 at once, medians of 2 rounds" in " ".join((done.stderr + done.stdout).split())


def test_a_python_without_vllm_is_told_in_a_sentence(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    options = ("--model", str(tiny_folder), "--batch", "1", "--limit", "1", "--passages", "1")
    done = antiphon("bench", "vllm", file, *options)
    assert done.exit_code == 2
    assert "vLLM with plain has ended" in done.stderr
    assert "No module named 'vllm'" in done.stderr


def test_throughput_without_decoding_steps_is_zero() -> None:
    assert BatchFigures("plain", 1, Decoded([EngineAnswer([1], 1)], 1.0)).tokens_per_second == 0
