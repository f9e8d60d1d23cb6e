"""The speed benchmark on the command line: samples, tables, charts, one line of JSON, and errors of one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.processor import processor_name
from antiphon.accel.text.messages import encode_prompt
from antiphon.pipelines.benchmark import chart as charts
from antiphon.pipelines.benchmark import speed as speed
from antiphon.pipelines.benchmark.jobs import make_jobs
from antiphon.pipelines.benchmark.loading import ARCHITECTURES
from antiphon.pipelines.benchmark.methods import (
    NAMES,
)
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.prompt import prompt_format
from antiphon.pipelines.rag import Rag
from antiphon.retrieval import Retriever
from benchmarks import bandwidth_floor
from benchmarks.bandwidth_floor import COPIED
from benchmarks.record import as_line, record_answers
from tests.pipelines.recorded import SAMPLES, antiphon, run_program

pytestmark = pytest.mark.slow


def test_recorded_samples_read_back_with_the_prompt_that_was_given(
    retriever: Retriever, tiny: LanguageModel, tmp_path: Path
) -> None:
    rag = Rag(retriever, tiny, k=2)
    lines = [
        as_line(each) for each in record_answers(rag, ["How many eggs?", "What is wax?"], name="bees", max_new_tokens=5)
    ]
    (tmp_path / "bees.jsonl").write_text("\n".join(lines), encoding="utf-8")
    one, other = load_samples(tmp_path / "bees.jsonl")
    assert (one.id, other.id, one.query) == ("bees-001", "bees-002", "How many eggs?")
    assert len(one.references) == 2
    assert one.references[0] in one.prompt
    (job,) = make_jobs(tiny, [one], limit=5)
    found = retriever.search("How many eggs?", 2)
    assert list(job.prompt) == encode_prompt(prompt_format(tiny)("How many eggs?", found).content, tiny.tokenizer)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_samples_are_found_by_name(name: str) -> None:
    samples = load_samples(name)
    assert len(samples) == {"python-docs": 40, "translation": 12, "genres": 12, "edits": 21}[name]
    assert all(sample.prompt and sample.response for sample in samples)
    if name == "python-docs":
        assert all(len(sample.references) == 3 and sample.query in sample.prompt for sample in samples)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speed") / "rows.jsonl"
    path.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    return path


def test_speed_is_shown_as_tables_charts_and_one_line(file: Path, tiny_folder: Path, tmp_path: Path) -> None:
    png, svg = tmp_path / "chart.png", tmp_path / "chart.svg"
    options = ("--num-draft-tokens", 8, "--task", "rag", "--limit", 2, "--max-new-tokens", 6, "--rounds", 1, "--json")
    shown = antiphon("bench", "speed", file, "--model", tiny_folder, *options, "--chart", png, "--chart", svg)
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
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text(encoding="utf-8")


def test_different_outputs_in_float32_end_with_exit_code_1(
    file: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "_identical", lambda one, other: 0.5)
    options = ("--num-draft-tokens", 8, "--limit", 1, "--max-new-tokens", 2, "--rounds", 1, "--method", "nothing")
    assert antiphon("bench", "speed", file, "--model", tiny_folder, *options, "--dtype", "float32").exit_code == 1
    assert antiphon("bench", "speed", file, "--model", tiny_folder, *options, "--dtype", "bfloat16").exit_code == 0


@pytest.fixture
def small_shape(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> tuple[object, ...]:
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    monkeypatch.setitem(
        ARCHITECTURES, "llama-15m", ARCHITECTURES["llama-15m"] | small | {"intermediate_size": 64, "vocab_size": 300}
    )
    return ("--model", "llama-15m", "--tokenizer", tiny_folder, "--json")


def test_random_weights_replay_the_recorded_answers(file: Path, small_shape: tuple[object, ...]) -> None:
    options = (
        "--num-draft-tokens",
        8,
        "--max-new-tokens",
        60,
        "--rounds",
        1,
        "--method",
        "blend",
        "--method",
        "blend:2",
    )
    shown = antiphon("bench", "speed", file, *small_shape, *options, "--dtype", "bfloat16")
    assert shown.exit_code == 0, shown.stderr
    facts = json.loads(shown.stdout.splitlines()[-1])
    assert (facts["model"], facts["replayed"], facts["dtype"]) == ("llama-15m", True, "bfloat16")
    answers = sum(len(sample.response) + 1 for sample in SAMPLES)
    assert [each["tokens"] for each in facts["methods"]] == [answers] * 3
    assert facts["methods"][1]["tokens_per_step"] > facts["methods"][2]["tokens_per_step"] > 1


def test_the_bandwidth_floor_is_printed_for_every_number_of_rows(
    small_shape: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COPIED, "cpu", 2**20)
    shown = run_program(bandwidth_floor.app, *small_shape, "--rows", 6, "--context", 16, "--device", "cpu")
    assert shown.exit_code == 0, shown.stderr
    facts = json.loads(shown.stdout.splitlines()[-1])
    assert (facts["kind"], facts["rows"], facts["context"]) == ("floor", [1, 2, 4, 6], 16)
    read = facts["weights_bytes"] + facts["cache_bytes"]
    assert facts["floor_ms"] == pytest.approx(read / facts["copy_gb_per_s"] / 1e6, abs=2e-3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--chart", "chart.pdf", "--num-draft-tokens", 8), "its name needs to end in .png or .svg"),
        (("--num-draft-tokens", "many"), "num_draft_tokens is 'many'"),
        (
            ("--model", "smollm2", "--tokenizer", "smollm2", "--num-draft-tokens", 8),
            "smollm2 has a tokenizer of its own",
        ),
        (("--method", "bushel", "--num-draft-tokens", 8), "There is no method 'bushel'"),
        (
            ("--model", "llama-2-7b", "--tokenizer", "./nowhere", "--num-draft-tokens", 8),
            "No tokenizer can be loaded from ./nowhere",
        ),
    ],
)
def test_invalid_options_are_refused_with_one_line(arguments: tuple[object, ...], complaint: str) -> None:
    shown = antiphon("bench", "speed", *arguments)
    assert shown.exit_code == 2
    assert complaint in " ".join(shown.stderr.split())


def test_a_tokenizer_with_too_many_tokens_for_an_architecture_is_refused(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "llama-15m", ARCHITECTURES["llama-15m"] | {"vocab_size": 200})
    shown = run_program(bandwidth_floor.app, "--model", "llama-15m", "--tokenizer", tiny_folder, "--device", "cpu")
    assert shown.exit_code == 2
    assert "The tokenizer has 261 tokens and the architecture 'llama-15m' has room for 200" in " ".join(
        shown.stderr.split()
    )


def test_a_chart_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[bench\]'"):
        charts.check_chart(Path("chart.png"))
