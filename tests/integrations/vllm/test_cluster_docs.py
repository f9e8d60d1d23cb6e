"""The Python examples of docs/cluster.md run, with a fake server in place of the one on port 8000."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.retrieval import build_index
from tests.accel.fake_server import ANSWER, FakeServer, run_server

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ADDRESS = "http://localhost:8000/v1"


@pytest.mark.parametrize("number", range(2))
def test_the_python_examples_of_the_page_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(BLOCKS) == 2
    assert ADDRESS in BLOCKS[number]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "keys.md").write_text("To rotate the keys, run rotate.sh as an administrator.\n")
    monkeypatch.chdir(tmp_path)
    build_index(["docs"], "my-index", embedder="hash")
    with run_server(FakeServer(owner="vllm", models=("smollm2",), takes_references=True)) as server:
        code = compile(BLOCKS[number].replace(ADDRESS, server.url), f"docs/cluster.md, block {number}", "exec")
        exec(code, {})
        assert all("vllm_xargs" in body for body in server.requests)
    assert ANSWER in capsys.readouterr().out
