"""The notebooks run from top to bottom and show the kinds of output that are stored in them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from nbformat import NotebookNode

from antiphon.accel.models.bundled import resolve_model
from tests.notebooks import NOTEBOOKS, ROOT, kernel, read, run

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

COMPARED = ("text/html", "image/png")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

LONG = ("how-drafting-works", "langchain", "llama-index", "quick-start", "train-bita", "your-own")
runs = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.exhaustive] if path.stem in LONG else []) for path in NOTEBOOKS
]


@pytest.fixture(scope="module")
def one_kernel() -> Iterator[KernelManager]:
    """One kernel for all notebooks, so that libraries are loaded once."""
    try:
        resolve_model("reader")
    except ImportError as error:
        pytest.skip(f"the embedded language model is not installed: {error}")
    with kernel() as manager:
        yield manager


def shown(notebook: NotebookNode) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Return the id and the kinds of outputs of each code cell."""
    return [
        (cell.id, [kinds(output) for output in cell.outputs]) for cell in notebook.cells if cell.cell_type == "code"
    ]


def kinds(output: NotebookNode) -> tuple[str, ...]:
    return (output.output_type, *(kind for kind in COMPARED if kind in output.get("data", {})))


def texts(notebook: NotebookNode) -> Iterator[str]:
    """Yield every output except pictures."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "")
            yield from (str(data) for kind, data in output.get("data", {}).items() if not kind.startswith("image/"))


def check(notebook: NotebookNode) -> None:
    """Check that no cell wrote to standard error or failed, and that no output has a path of one machine."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.get("name") == "stderr" or output.output_type == "error"] == []
    assert [text for text in texts(notebook) if re.search(r"(?<![\w.<])/(home|root|tmp|Users|work)/", text)] == []


@pytest.mark.parametrize("path", runs)
def test_a_notebook_runs_and_its_outputs_have_the_stored_kinds(path: Path, one_kernel: KernelManager) -> None:
    now, stored = run(path, one_kernel), read(path)
    check(now)
    assert shown(now) == shown(stored), "run: make notebooks"


@each_notebook
def test_a_notebook_has_outputs_and_opens_with_its_result(path: Path) -> None:
    notebook = read(path)
    check(notebook)
    assert any(outputs for _, outputs in shown(notebook))
    title, promise = notebook.cells[0].source.split("\n\n")[:2]
    assert title.startswith("# ")
    assert promise.startswith("At the end of this notebook you have")
    assert max(cell.source.count("\n") for cell in notebook.cells if cell.cell_type == "code") < 25


def test_the_docs_name_every_notebook() -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\S+\.ipynb)`", page, re.MULTILINE)) == {path.name for path in NOTEBOOKS}
