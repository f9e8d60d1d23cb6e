"""Retrieval benchmark: figures that can be computed by hand."""

import json
from math import log2
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.pipelines.benchmark.samples import RecordedSample
from antiphon.retrieval import HashEmbedder
from benchmarks import retrieval
from benchmarks.retrieval import measure_retrieval


def sample(number: int, query: str, *references: str) -> RecordedSample:
    return RecordedSample(str(number), "rag", query, references, "", "")


def test_figures_are_those_of_the_definitions() -> None:
    samples = [sample(0, "alpha", "alpha beta", "no word of it"), sample(1, "gamma", "gamma delta")]
    words = next(finding for finding in measure_retrieval(samples, HashEmbedder()) if finding.method == "words (BM25)")
    assert words.recall == pytest.approx((1 / 2 + 1) / 2)
    assert words.mrr == 1
    assert words.ndcg == pytest.approx((1 / (1 + 1 / log2(3)) + 1) / 2)


@pytest.mark.exhaustive
def test_the_command_prints_every_way_to_search(tmp_path: Path) -> None:
    row = {"id": "1", "task": "rag", "query": "alpha", "references": ["alpha beta"], "prompt": "", "response": ""}
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps(row), encoding="utf-8")
    shown = CliRunner().invoke(retrieval.app, [str(file), "--embedder", "hash", "--json"])
    assert shown.exit_code == 0, shown.stderr
    figures = json.loads(shown.stdout)
    assert [method["method"] for method in figures["methods"]] == [
        "vectors",
        "words (BM25)",
        "both, by ranks",
        "both",
        "both, then maxsim",
    ]
    assert all(method["recall@5"] == 1 for method in figures["methods"])
