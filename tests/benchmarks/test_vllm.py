"""vLLM study: jobs of the engines, figures of their outputs, and engines that end early."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record import as_line
from benchmarks.vllm.__main__ import app
from benchmarks.vllm.measure import (
    figures_with_ratios,
    measure_vllm,
    median_figures,
)
from benchmarks.vllm.worker import Decoded, EngineAnswer
from tests.pipelines.recorded import SAMPLES, run_program

FAKE = Path(__file__).parent / "fake_vllm"


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


@pytest.mark.exhaustive
def test_the_program_shows_a_table_for_every_batch_size(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), *sys.path]))
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    options = ["--model", str(tiny_folder), "--method", "plain", "--method", "antiphon", "--batch", "1", "--batch", "2"]
    more = ["--limit", "1", "--warm-up", "0", "--passages", "1", "--max-new-tokens", "8", "--dtype", "float32"]
    done = run_program(app, file, *options, *more, "--rounds", "2", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["kind"], facts["vllm"], list(facts["batches"])) == ("vllm", "0.0.fake", ["1", "2"])
    assert [row["tokens_per_step"] for row in facts["batches"]["1"]] == [1.0, 2.667]
    assert [row["method"] for row in facts["batches"]["2"]] == ["plain", "antiphon"]
    assert "2 requests, 2 at once, medians of 2 rounds" in " ".join((done.stderr + done.stdout).split())
