"""Run the notebooks as Jupyter does and store their outputs: python -m tests.notebooks [name ...]."""

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
"""Time limit of one cell; a busy machine needs minutes for what an idle one does in seconds."""


@contextmanager
def kernel() -> Iterator[KernelManager]:
    """Start a Python kernel that imports this checkout and uses one thread per model."""
    folder = mkdtemp()  # two kernels in one working directory would share their sockets
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
    paths = os.pathsep.join(str(ROOT / part) for part in PARTS)
    manager.start_kernel(env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def run(path: Path, manager: KernelManager) -> NotebookNode:
    """Run a notebook in a kernel whose namespace is cleared first.

    Args:
        path: the notebook file.
        manager: a running kernel.

    Returns:
        The notebook with the outputs of all cells.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an error.
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
    """Return the notebook as it is stored."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def tidied(notebook: NotebookNode) -> NotebookNode:
    """Remove what differs between two equal runs, and output formats that no page shows."""
    for number, cell in enumerate((each for each in notebook.cells if each.cell_type == "code"), start=1):
        cell.metadata.pop("execution", None)
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if {"text/html", "image/png"} & output.get("data", {}).keys():  # these are shown instead
                output.data.pop("text/plain", None)
                output.data.pop("text/markdown", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main(names: Sequence[str]) -> None:
    """Run the named notebooks, or all of them, each in its own kernel, and store them with their outputs."""
    for path in NOTEBOOKS:
        if not names or path.stem in names:
            with kernel() as manager:
                nbformat.write(run(path, manager), path)


if __name__ == "__main__":
    main(sys.argv[1:])
