"""mkdocs hook: inserts outputs of the notebooks into the pages that name them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
_OUTPUT = re.compile(r"^<!-- output (\S+) (\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``<!-- output quick-start.ipynb answer -->`` with the stored HTML output of the cell ``answer``."""
    return _OUTPUT.sub(lambda named: html_output(named[1], named[2]), markdown)


def html_output(notebook: str, cell: str) -> str:
    """Return the stored HTML output of a notebook cell.

    Args:
        notebook: file name in ``notebooks/``.
        cell: id of the cell.

    Raises:
        ValueError: the notebook has no such output.
    """
    cells = json.loads((NOTEBOOKS / notebook).read_text(encoding="utf-8"))["cells"]
    for each in cells:
        for output in each.get("outputs", []) if each["id"] == cell else []:
            if "text/html" in output.get("data", {}):
                return "".join(output["data"]["text/html"])
    raise ValueError(f"{notebook} has no cell {cell!r} with an HTML output; run: make notebooks")
