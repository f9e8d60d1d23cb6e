"""The command `doctor`: report and JSON of one model, and errors."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.pipelines.cli import app
from antiphon.pipelines.models import suggestions
from tests.families.table import tiny_model
from tests.tiny import save_model

pytestmark = pytest.mark.slow


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def test_json_is_one_line_with_all_facts(tiny_folder: Path) -> None:
    shown = doctor(tiny_folder, "--json")
    assert shown.exit_code == 0, shown.stderr
    (line,) = shown.stdout.splitlines()
    found = json.loads(line)
    assert found["name"] == str(tiny_folder)
    assert found["template"]["turns"] == "in any order"
    assert (found["level"], list(found["cost"])) == ("tree", ["64", "918"])
    assert [row["rows"][0] for row in found["cost"].values()] == [row["ratio"][0] for row in found["cost"].values()]


def test_rotary_limits_are_on_the_card(tmp_path: Path, tiny_folder: Path) -> None:
    cards = {}
    for family in ("phi3-longrope", "llama-dynamic"):
        folder = save_model(tiny_model(family), tmp_path / family)
        cards[family] = " ".join(doctor(folder).stdout.split())
    assert "change at 52 tokens: no draft reaches over it; the cache is rebuilt there, once" in cards["phi3-longrope"]
    assert "change with every token from 52 on: no draft goes there" in cards["llama-dynamic"]
    assert "→ Keep prompt and answer within 52 tokens" in cards["llama-dynamic"]


def test_without_a_model_it_names_those_that_fit_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "available_memory", lambda: 8 * 10**9)
    monkeypatch.setattr(suggestions, "memory_bandwidth", lambda: 20e9)
    monkeypatch.setattr(suggestions, "has_bfloat16_units", lambda: True)
    monkeypatch.setattr(suggestions, "local_servers", lambda: {"ollama": ["qwen3:4b"]})
    monkeypatch.setattr(suggestions, "find_spec", lambda name: None if name == "nncf" else name)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = json.loads(doctor("--json").stdout)
    speeds = {model["model"]: model["tokens_per_s"] for model in found["models"]}
    assert "Qwen/Qwen3.5-4B" not in speeds, "it needs 11 GB"
    assert speeds["HuggingFaceTB/SmolLM3-3B"] == 3.2  # 20 GB/s over 6.2 GB of weights
    assert [row["engine"] for row in found["models"] if row["model"].startswith("meta-llama")] == ["openvino"]
    shown = " ".join(doctor().stdout.split())
    assert "HuggingFaceTB/SmolLM3-3B 7.8 3.2 openvino" in shown
    assert "ollama answers here: --model ollama/qwen3:4b" in shown
    assert "Not installed: weights of 8 or 4 bits (--weights int8): pip install 'antiphon[int8]'" in shown
    assert "Not installed: the bundled" not in shown


def test_the_bandwidth_is_that_of_memory() -> None:
    assert 1e8 < suggestions.memory_bandwidth(0.05) < 1e12
