"""The documentation site builds without warnings, its Python runs, and commands and tables are rendered as such."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt

from antiphon.accel.drafting.drafters import BITA_FILE
from antiphon.retrieval import build_index
from recipes.bita.initial import initial_bita_weights, save_bita_weights
from tests.tiny import save_model, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ROOT = Path(__file__).parents[1]
MODEL = "Qwen/Qwen3-8B"
PAGES = (
    "start",
    "citations",
    "chat",
    "sessions",
    "drafters",
    "lookahead",
    "bita",
    "language-model",
    "models",
    "concepts",
)
CONTINUING = ("language-model",)
"""Pages whose blocks use the names of the blocks before them."""


def blocks_of(page: str) -> list[str]:
    """Return the Python blocks of a page; those of a continuing page include the blocks before them."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return ["".join(blocks[: end + 1]) for end in range(len(blocks))] if page in CONTINUING else blocks


BLOCKS = [pytest.param(block, id=f"{page}-{number}") for page in PAGES for number, block in enumerate(blocks_of(page))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_builds_without_warnings_and_fetches_nothing(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert {page.parent.name for page in pages} >= {
        "start",
        "concepts",
        "blend",
        "trie",
        "copying",
        "recycling",
        "accel",
    }
    fetched = re.compile(r"""<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)=["']?(https?:)?//[^"'>]*""")
    assert [found[0] for page in pages for found in fetched.finditer(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("block", BLOCKS)
def test_the_python_of_the_pages_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "build_index" in block and torch.cuda.is_available():
        pytest.skip("on a GPU this example fetches BGE-M3")
    model = tiny_model(max_position_embeddings=16_384)
    save_model(model, tmp_path / "my-model")
    save_bita_weights(initial_bita_weights(model), tmp_path / "my-model" / BITA_FILE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "keys.md").write_text("Keys are rotated once a year.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if "my-index" in block:
        build_index(["docs"], "my-index", embedder="minilm")
    exec(compile(block.replace(MODEL, "my-model"), "a page", "exec"), {})
    assert capsys.readouterr().out


RENDERED = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_COMMAND = re.compile(r"^(antiphon (index|ask|chat|serve|bench)|pip install|python -m|git clone|docker run) ")


def texts(page: Path) -> Iterator[tuple[bool, str, list[str]]]:
    """Yield whether each text is a cell of a table, its source, and the parts of it that are not code."""
    parser = MarkdownIt("commonmark").enable("table")  # cells are split as GitHub splits them
    in_cell = False
    for token in parser.parse(page.read_text("utf-8")):
        if token.type == "inline":
            parts = [child.content for child in token.children or () if child.type == "text"]
            yield in_cell, token.content, parts
        else:
            in_cell = token.type in ("td_open", "th_open")


@pytest.mark.parametrize("page", RENDERED, ids=lambda page: page.stem)
def test_no_command_is_rendered_as_prose(page: Path) -> None:
    assert [part for _, _, parts in texts(page) for part in parts if _COMMAND.search(part)] == []


@pytest.mark.parametrize("page", RENDERED, ids=lambda page: page.stem)
def test_every_table_is_rendered_as_one_and_no_cell_is_cut_inside_of_code(page: Path) -> None:
    for in_cell, source, parts in texts(page):
        assert not in_cell or not any("`" in part for part in parts), f"code is cut off: {source}"
        assert in_cell or not re.search(r"^\|.*\|$", source, re.MULTILINE), f"no table: {source}"
