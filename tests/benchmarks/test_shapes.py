"""The speed study at the size of a model: random weights that are made once, in all programs alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel.engines.openvino.runtime import is_installed
from benchmarks import start_up
from benchmarks.record import as_line
from benchmarks.shapes import ARCHITECTURES, stored_shape
from benchmarks.speed import app
from tests.pipelines.recorded import SAMPLES, run_program

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 49_152,
}


@pytest.mark.skipif(not is_installed(), reason="OpenVINO is not installed: pip install openvino")
def test_all_programs_emit_the_recorded_answers_at_the_size_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino_genai")
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(as_line, SAMPLES)), encoding="utf-8")
    monkeypatch.setitem(ARCHITECTURES, "qwen2.5-1.5b", ARCHITECTURES["qwen2.5-1.5b"] | SMALL)
    monkeypatch.setattr(start_up, "measure_starts", lambda programs: [])
    options = ("--shape", "qwen2.5-1.5b", "--dtype", "float32", "--max-new-tokens", 40, "--rounds", 1, "--json")
    shown = run_program(app, file, *options)
    assert shown.exit_code == 0, shown.stderr
    facts = json.loads(shown.stdout.splitlines()[-1])
    names = [each["method"] for each in facts["methods"]]
    lookups = [f"openvino-genai-lookup:{tokens}" for tokens in (3, 5, 8, 10)]
    assert names == ["hf-greedy", "openvino-genai", *lookups, "blend@openvino"]
    assert facts["replayed"]
    assert {each["identical"] for each in facts["methods"]} == {1}
    assert len({each["tokens"] for each in facts["methods"]}) == 1
    folder = stored_shape("qwen2.5-1.5b")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert stored_shape("qwen2.5-1.5b") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before, "random weights are made once"
