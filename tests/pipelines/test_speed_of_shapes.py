"""`bench speed --shape`: every program decodes the recorded answers, and its start-up and memory are measured."""

import json
from pathlib import Path

import pytest

from antiphon.pipelines.benchmark import start_up
from antiphon.pipelines.benchmark.loading import ARCHITECTURES, stored_shape
from tests.pipelines.recorded import antiphon

pytest.importorskip("openvino_genai")
pytestmark = pytest.mark.slow

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 49_152,
}
SAMPLE = {
    "id": "1",
    "task": "qa",
    "query": "How long does the kettle take?",
    "references": ["The kettle boils a litre of water in two minutes and forty seconds."],
    "prompt": "The kettle boils a litre of water in two minutes and forty seconds. How long does it take? ",
    "response": "It boils a litre of water in two minutes and forty seconds.",
}


@pytest.fixture(autouse=True)
def _small_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "qwen2.5-1.5b", ARCHITECTURES["qwen2.5-1.5b"] | SMALL)
    monkeypatch.setattr(start_up, "STARTS", 1)


def test_all_programs_decode_the_answer_and_are_started_anew(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text(json.dumps(SAMPLE) + "\n", encoding="utf-8")
    options = ("--shape", "qwen2.5-1.5b", "--dtype", "float32", "--max-new-tokens", 40, "--rounds", 1, "--json")
    shown = antiphon("bench", "speed", file, *options)
    assert shown.exit_code == 0, shown.stderr
    facts = json.loads(shown.stdout.splitlines()[-1])
    names = [each["method"] for each in facts["methods"]]
    lookups = [f"openvino-genai-lookup:{tokens}" for tokens in (3, 5, 8, 10)]
    assert names == ["hf-greedy", "openvino-genai", *lookups, "blend@openvino"]
    assert {each["identical"] for each in facts["methods"]} == {1}
    assert len({each["tokens"] for each in facts["methods"]}) == 1
    assert [each["program"] for each in facts["starts"]] == ["transformers", "antiphon", "openvino-genai"]
    for each in facts["starts"]:
        assert each["seconds"] > 0
        assert each["peak_gb"] >= each["resident_gb"] > 0 or each["peak_gb"] == 0


def test_random_weights_are_made_once() -> None:
    folder = stored_shape("qwen2.5-1.5b")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert stored_shape("qwen2.5-1.5b") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_an_unknown_shape_is_refused() -> None:
    shown = antiphon("bench", "speed", "--shape", "qwen-9000b")
    assert shown.exit_code == 2
    assert "There is no architecture 'qwen-9000b'; choose one of llama-15m" in " ".join(shown.stderr.split())
