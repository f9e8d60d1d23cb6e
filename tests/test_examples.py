"""Every program in examples/ runs on the embedded models and prints what it promises."""

from __future__ import annotations

import asyncio
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.accel import resolve_model
from antiphon.retrieval import build_index
from tests.test_readme import DOCUMENT, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one document and its index."""
    try:
        resolve_model("reader")
    except ImportError as error:
        pytest.skip(f"the embedded language model is not installed: {error}")
    folder = tmp_path_factory.mktemp("examples")
    (folder / "docs").mkdir()
    (folder / "docs" / "keys.md").write_text(DOCUMENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build_index(["docs"], "my-index", embedder="minilm")
    return folder


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    """LlamaIndex creates an event loop and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


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
