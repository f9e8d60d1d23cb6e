"""Each program of `benchmarks/` runs once, on a tiny model or a tiny corpus."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer

from antiphon.accel.drafting.drafters import DRAFTERS
from antiphon.accel.testing.tiny import byte_tokenizer
from antiphon.pipelines.benchmark.shapes import ARCHITECTURES
from benchmarks import answers, bandwidth_floor, drafters, indexing, own_questions, replay, retrieval, speed, start_up
from benchmarks.batch.__main__ import app as batch
from benchmarks.page import render_page
from benchmarks.record import as_line
from benchmarks.vllm.__main__ import app as vllm
from tests.benchmarks.test_figures import EGGS, NOBODY
from tests.pipelines.recorded import SAMPLES, run_program

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SHORT = ("--limit", 2, "--max-new-tokens", 8, "--rounds", 1, "--json")
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 96, "vocab_size": 49_152}


def figures_of(app: typer.Typer, *arguments: object) -> dict[str, Any]:
    """Run a program, and return its last line."""
    shown = run_program(app, *arguments)
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{as_line(sample)}\n" for sample in SAMPLES), encoding="utf-8")
    return path


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """A corpus of one document with an answerable and an unanswerable question and a conversation."""
    (tmp_path / "bees").mkdir()
    (tmp_path / "bees" / "a.md").write_text("# Queens\n\nA queen lays two thousand eggs.\n", encoding="utf-8")
    questions = "\n".join(json.dumps(asdict(asked)) for asked in (EGGS, NOBODY))
    (tmp_path / "questions.jsonl").write_text(questions, encoding="utf-8")
    turn = asdict(EGGS) | {"turns": ["What lays a queen?", "And how many of them?"]}
    del turn["question"]
    (tmp_path / "conversations.jsonl").write_text(json.dumps(turn), encoding="utf-8")
    return tmp_path


def test_programs_decode_with_random_weights_and_are_started_anew(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "qwen2.5-1.5b", ARCHITECTURES["qwen2.5-1.5b"] | SMALL)
    monkeypatch.setitem(bandwidth_floor.COPIED, "cpu", 2**20)
    monkeypatch.setattr(start_up, "STARTS", 1)
    options = (file, "--max-new-tokens", 40, "--rounds", 1, "--dtype", "float32", "--shuffle", "--json")
    for model in ("--model", "--shape"):
        methods = ("--method", "blend", "--method", "blend-warm")
        facts = figures_of(speed.app, *options, model, "qwen2.5-1.5b", *methods)
        assert (facts["model"], facts["replayed"], facts["shuffled"]) == ("qwen2.5-1.5b", True, True)
        assert {each["identical"] for each in facts["methods"]} == {1}
        assert "references of another question" in render_page([facts])
    starts = {each["program"]: each["seconds"] for each in facts["starts"]}
    assert starts.keys() >= {"transformers", "antiphon"}
    assert min(starts.values()) > 0
    size = ("--rows", 6, "--context", 16, "--device", "cpu", "--json")
    facts = figures_of(bandwidth_floor.app, "--model", "qwen2.5-1.5b", *size)
    assert (facts["kind"], facts["rows"], facts["context"]) == ("floor", [1, 2, 4, 6], 16)


def test_answers_are_replayed_with_every_drafter(file: Path, tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    facts = figures_of(replay.app, file, "--tokenizer", tmp_path / "tokenizer", "--json")
    assert [each["drafter"] for each in facts["drafters"]] == list(DRAFTERS)
    assert facts["drafters"][0]["tokens_per_step"] == 1.0


def test_every_drafter_decodes_answers_summaries_and_chat(file: Path, tiny_folder: Path) -> None:
    methods = ["hf-greedy", "blend", "blend+lookahead", "auto"]
    named = [part for method in methods[1:] for part in ("--method", method)]
    facts = figures_of(drafters.app, file, "--model", tiny_folder, "--passages", 1, *SHORT, *named)
    assert list(facts["sets"]) == ["rag", "summarization", "chat"]
    for found in facts["sets"].values():
        assert [each["method"] for each in found] == methods
        assert all(each["identical"] == 1 for each in found)
    page = render_page([facts])
    assert "| drafter | rag | summarization | chat |" in page
    assert "all outputs identical to greedy decoding" in page


def test_every_method_decodes_batches_to_the_same_outputs(file: Path, tiny_folder: Path) -> None:
    pytest.importorskip("openvino_genai")
    facts = figures_of(batch, file, "--model", tiny_folder, "--engine", "openvino", "--dtype", "float32", *SHORT)
    assert len(facts["methods"]) == 6
    assert {each["identical"] for each in facts["methods"]} == {1.0}


def test_vllm_decodes_at_every_batch_size(file: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Path(__file__).parent / "fake_vllm"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(fake), *sys.path]))
    size = ("--batch", 1, "--batch", 2, "--limit", 1, "--warm-up", 0, "--passages", 1, "--max-new-tokens", 8)
    methods = ("--method", "plain", "--method", "antiphon", "--dtype", "float32")
    facts = figures_of(vllm, file, "--model", tiny_folder, *size, *methods, "--rounds", 2, "--json")
    assert (facts["kind"], facts["vllm"], list(facts["batches"])) == ("vllm", "0.0.fake", ["1", "2"])
    assert [row["tokens_per_step"] for row in facts["batches"]["1"]] == [1.0, 2.667]
    assert [row["method"] for row in facts["batches"]["2"]] == ["plain", "antiphon"]


def test_questions_are_traced_through_an_index_and_asked(corpora: Path, tiny_folder: Path) -> None:
    row, every = figures_of(answers.app, corpora, "--model", "none", "--json")["corpora"]
    assert row | {"corpus": "all"} == every
    assert (row["answerable"], row["unanswerable"], row["cut"], row["recall@3"]) == (1, 1, 0, 1.0)
    assert "right" not in row
    options = ("--out", corpora / "answers.jsonl", "--model", tiny_folder, "--max-new-tokens", 8, "--json")
    rows = figures_of(own_questions.app, corpora, *options)["rows"]
    assert [row["corpus"] for row in rows] == ["bees", "all", "conversations"]
    assert [row["recall@5"] for row in rows] == [1, 1, 1]
    asked = [json.loads(line) for line in (corpora / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [len(one["before"]) for one in asked] == [0, 0, 1]
    assert "queen" in asked[-1]["searched"]


def test_every_way_to_search_finds_the_passages(file: Path) -> None:
    facts = figures_of(retrieval.app, file, "--embedder", "hash", "--json")
    names = [method["method"] for method in facts["methods"]]
    assert names == ["vectors", "words (BM25)", "both, by ranks", "both", "both, then maxsim"]


def test_indexes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_SECONDS", 0.0)
    size = ("--vectors", 500, "--dim", 16, "--queries", 20)
    facts = figures_of(indexing.app, *size, "--setting", "flat", "--setting", "compact", "--json")
    assert (facts["vectors"], facts["dim"], facts["queries"]) == (480, 16, 20)
    flat, compact = facts["settings"]
    assert (flat["recall@100"], flat["recall@10"], flat["bytes_per_vector"]) == (1, 1, 64)
    assert compact["recall@100"] > 0.9
    assert min(flat["queries_per_second"], compact["build_seconds"], compact["peak_gib"]) > 0
