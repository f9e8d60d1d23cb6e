"""`antiphon bench speed`: samples, tables, one line of JSON, and errors of one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.accel.processor import processor_name
from antiphon.pipelines.benchmark import speed
from antiphon.pipelines.benchmark.methods import NAMES
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from benchmarks.record import as_line
from tests.pipelines.recorded import SAMPLES, antiphon

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SHORT = ("--num-draft-tokens", 8, "--limit", 1, "--max-new-tokens", 2, "--rounds", 1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speed") / "rows.jsonl"
    path.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    return path


def test_speed_is_shown_as_tables_and_one_line(file: Path, tiny_folder: Path) -> None:
    options = ("--num-draft-tokens", 8, "--task", "rag", "--limit", 2, "--max-new-tokens", 6, "--rounds", 1, "--json")
    shown = antiphon("bench", "speed", file, "--model", tiny_folder, *options)
    assert shown.exit_code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    facts = json.loads(lines[-1])
    assert all(any(f" {name} " in line for line in lines) for name in NAMES)
    assert (facts["kind"], facts["file"], facts["task"], facts["samples"]) == ("speed", "rows.jsonl", "rag", 2)
    assert (facts["replayed"], facts["dtype"], facts["device"], facts["rows"]) == (False, "float32", "cpu", "8")
    assert facts["processor"] == processor_name()
    assert any(processor_name() in line for line in lines)
    assert [each["method"] for each in facts["methods"]] == list(NAMES)
    assert all(each["identical"] == 1 and each["tokens_per_s"] > 0 for each in facts["methods"])


def test_different_outputs_in_float32_end_with_exit_code_1(
    file: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "_identical", lambda one, other: 0.5)
    options = (*SHORT, "--method", "nothing")
    assert antiphon("bench", "speed", file, "--model", tiny_folder, *options, "--dtype", "float32").exit_code == 1
    assert antiphon("bench", "speed", file, "--model", tiny_folder, *options, "--dtype", "bfloat16").exit_code == 0


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_samples_are_found_by_name(name: str) -> None:
    samples = load_samples(name)
    assert len(samples) == {"python-docs": 40, "translation": 12, "genres": 12, "edits": 21}[name]
    assert all(sample.prompt and sample.response for sample in samples)
    if name == "python-docs":
        assert all(len(sample.references) == 3 and sample.query in sample.prompt for sample in samples)
