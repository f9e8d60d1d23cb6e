"""The Python of docs/langchain.md runs, in its order, with the embedded model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel.tiny import tiny_model
from antiphon.pipelines.console import quiet_libraries
from antiphon.pipelines.embedded import resolve_model
from antiphon.retrieval import HashEmbedder, build_index
from tests.integrations.scripted import tool_tokenizer

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "langchain.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
DOCUMENT = "Keys are rotated once a year.\n\nTo rotate the keys, run rotate.sh as an administrator.\n"


@pytest.fixture
def agents_model(tmp_path: Path) -> str:
    """A tiny stand-in for the model that calls tools."""
    quiet_libraries()
    tiny_model(max_position_embeddings=16_384).save_pretrained(tmp_path / "model")
    tool_tokenizer().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_the_python_of_the_documentation_runs(
    agents_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        resolve_model("smollm2")
    except ImportError as error:
        pytest.skip(f"the embedded language model is not installed: {error}")
    monkeypatch.chdir(tmp_path)
    Path("keys.md").write_text(DOCUMENT, encoding="utf-8")
    build_index(["keys.md"], "my-index", embedder=HashEmbedder())
    assert len(BLOCKS) == 6
    names: dict[str, Any] = {"__name__": "documentation"}
    for index, block in enumerate(BLOCKS):
        code = block.replace("Qwen/Qwen3-8B", agents_model).replace("max_tokens=40", "max_tokens=8")
        exec(compile(code, f"docs/langchain.md, block {index}", "exec", dont_inherit=True), names)
        assert capsys.readouterr().out
    assert names["documents"][0].page_content in names["asked"].to_string()
