"""Runs the notebooks as Jupyter would and keeps what they showed: python -m tests.notebooks [name ...]."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARTS = ("accel", "retrieval", "pipelines", "integrations")
SECONDS = 300
"""For one cell: what an idle machine does in seconds takes a busy one minutes."""


@contextmanager
def kernel() -> Iterator[KernelManager]:
    """A Python that runs the code of this checkout, one thread a model."""
    folder = mkdtemp()  # for its sockets: two kernels in one working directory would share theirs
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
    paths = os.pathsep.join(str(ROOT / part) for part in PARTS)
    manager.start_kernel(env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def run(path: Path, manager: KernelManager) -> NotebookNode:
    """The notebook with the outputs of all its cells, begun with no names left of another one.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell ended in an error.
    """
    notebook = read(path)
    begin = nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {path.parent}", id="begin")
    notebook.cells.insert(0, begin)
    client = NotebookClient(notebook, timeout=SECONDS, km=manager, coalesce_streams=True)
    client.execute()
    if client.kc is not None:
        client.kc.stop_channels()
    notebook.cells.pop(0)
    return tidied(notebook)


def read(path: Path) -> NotebookNode:
    """The notebook as it is kept."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def tidied(notebook: NotebookNode) -> NotebookNode:
    """The notebook without what differs between two runs that showed the same, and without what no page shows."""
    for number, cell in enumerate((each for each in notebook.cells if each.cell_type == "code"), start=1):
        cell.metadata.pop("execution", None)
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if {"text/html", "image/png"} & output.get("data", {}).keys():  # shown in place of the others
                output.data.pop("text/plain", None)
                output.data.pop("text/markdown", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main(names: Sequence[str]) -> None:
    """Run these notebooks, or all, each in a Python of its own, and write them with their outputs."""
    for path in NOTEBOOKS:
        if not names or path.stem in names:
            with kernel() as manager:
                nbformat.write(run(path, manager), path)


if __name__ == "__main__":
    main(sys.argv[1:])
