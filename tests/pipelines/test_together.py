"""The command `lookahead`: one process decodes on one device, and its text is that of plain decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.accel import LanguageModel
from antiphon.pipelines.cli import app

MORE = ("--max-new-tokens", "20", "--dtype", "float32")


def test_the_answer_is_plain_decodings_and_its_cost_is_said(
    tiny: LanguageModel, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    shown = CliRunner().invoke(app, ["lookahead", "How many eggs?", "--model", str(tiny_folder), *MORE, "--json"])
    told = json.loads(shown.stdout)
    asked = [{"role": "user", "content": "How many eggs?"}]
    assert told["text"] == tiny.generate(asked, max_new_tokens=20, num_draft_tokens=0).text
    assert (told["devices"], told["steps"] <= told["tokens"] <= 20) == (1, True)
    card = CliRunner().invoke(app, ["lookahead", "How many eggs?", "--model", str(tiny_folder), *MORE])
    assert told["text"] in card.stdout
    assert f"{told['tokens']} tokens in {told['steps']} steps" in card.stderr


def test_a_setting_that_means_nothing_is_refused_in_one_sentence() -> None:
    shown = CliRunner().invoke(app, ["lookahead", "?", "--ngram", "1"])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "ngram is 1" in shown.stderr
