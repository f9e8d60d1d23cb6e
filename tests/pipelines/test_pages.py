"""The Python of docs/sessions.md and docs/chat.md runs, with a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.retrieval import HashEmbedder, build_index

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "lines"), [("sessions.md", 3), ("chat.md", 3)])
def test_the_python_of_the_page_runs(
    page: str,
    lines: int,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys.md").write_text("Keys are rotated once a year, by an administrator.\n", encoding="utf-8")
    build_index(["keys.md"], "my-index", embedder=HashEmbedder())
    text = (DOCS / page).read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code = block.replace("Qwen/Qwen3-8B", str(tiny_folder))
    exec(compile(code, f"docs/{page}", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out.count("\n") >= lines
