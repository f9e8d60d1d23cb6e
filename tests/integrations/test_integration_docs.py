"""The Python blocks of the pages on LangChain, LlamaIndex, vLLM and vector databases run."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from llama_index.core import Settings

from antiphon.accel.models.bundled import resolve_model
from antiphon.pipelines.cli.console import quiet_libraries
from antiphon.retrieval import HashEmbedder, build_index
from tests.accel.fake_server import ANSWER, FakeServer, run_server
from tests.integrations.scripted_model import tool_tokenizer
from tests.retrieval.servers import postgres, table_address
from tests.tiny import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = "Keys are rotated once a year.\n\nTo rotate the keys, run rotate.sh as an administrator.\n"


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with one document."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/keys.md").write_text(DOCUMENT, encoding="utf-8")


@pytest.fixture
def agents_model(tmp_path: Path) -> str:
    """A folder with a tiny model that replaces the tool-calling model of the page."""
    quiet_libraries()
    tiny_model(max_position_embeddings=16_384).save_pretrained(tmp_path / "model")
    tool_tokenizer().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def documentation(monkeypatch: pytest.MonkeyPatch, _event_loop: None) -> Iterator[ModuleType]:
    """The module in which the blocks of a page run."""
    module = ModuleType("documentation")
    monkeypatch.setitem(sys.modules, "documentation", module)
    yield module
    Settings.tokenizer = None  # type: ignore[assignment]


@pytest.mark.parametrize(("page", "count"), [("langchain.md", 9), ("llama-index.md", 5)])
def test_python_blocks_of_the_page_run(
    page: str, count: int, documentation: ModuleType, agents_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        resolve_model("smollm2")
    except ImportError as error:
        pytest.skip(f"the bundled language model is not installed: {error}")
    build_index(["docs"], "my-index", embedder=HashEmbedder())
    names: Any = vars(documentation)
    assert len(blocks(page)) == count
    for index, block in enumerate(blocks(page)):
        code = block.replace("Qwen/Qwen3-8B", agents_model).replace("max_tokens=40", "max_tokens=4")
        exec(compile(code, f"docs/{page}, block {index}", "exec", dont_inherit=True), names)
        assert capsys.readouterr().out


ADDRESS = "postgresql://me@127.0.0.1/antiphon?table=passages"
PRINTED = ("in May", "run rotate.sh", "once a year")


@pytest.mark.parametrize("number", range(3))
def test_python_blocks_of_the_vector_database_page_run(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(blocks("vector-databases.md")) == len(PRINTED)
    block = blocks("vector-databases.md")[number]
    if ADDRESS in block:
        with postgres() as server:
            exec(block.replace(ADDRESS, table_address(server, "passages")), {})
    else:
        exec(block, {})
    assert PRINTED[number] in capsys.readouterr().out


@pytest.mark.usefixtures("socket_enabled")
def test_the_python_block_of_the_cluster_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = blocks("cluster.md")
    build_index(["docs"], "my-index", embedder="hash")
    with run_server(FakeServer(owner="vllm", models=("smollm2",), takes_references=True)) as server:
        exec(block.replace("http://localhost:8000/v1", server.url), {})
        assert server.requests
        assert all("vllm_xargs" in body for body in server.requests)
    assert ANSWER in capsys.readouterr().out
