"""Every program in examples/ runs on the embedded models and prints what it promises."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.test_readme import ROOT, folder

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

__all__ = ["folder"]

EXAMPLES = ROOT / "examples"
QUESTION = "How do I rotate the keys?"
ARGUMENTS = {
    "ask_documents": ["docs", QUESTION],
    "custom_drafter": [],
    "edit_with_references": [],
    "langchain_rag": ["my-index", QUESTION],
    "llama_index_rag": ["my-index", QUESTION],
    "lookahead_parallel": [QUESTION, "--max-new-tokens", "8"],
    "stream_answer": ["my-index", QUESTION],
}
PRINTED = {
    "ask_documents": r"1 files, 1 passages\n.*run rotate\.sh.*\n  docs/keys\.md, characters",
    "custom_drafter": r"tokens per step\nidentical text: True",
    "edit_with_references": r"tokens per step with drafts, 1\.00 without\nidentical text: True",
    "langchain_rag": r"run rotate\.sh.*\n  .*keys\.md.*: '",
    "llama_index_rag": r"run rotate\.sh.*\n  .*keys\.md: '",
    "lookahead_parallel": r"\w",
    "stream_answer": r"run rotate\.sh",
}


@pytest.mark.usefixtures("_event_loop")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_runs(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *ARGUMENTS[name]])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(PRINTED[name], capsys.readouterr().out, re.DOTALL)


def test_every_example_is_listed_and_run() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = set(re.findall(r"^\| \[`(\w+)\.py`\]", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE))
    assert programs == listed == {*ARGUMENTS, "openai_client"}, "openai_client is run by tests/pipelines/server"
