"""What mkdocs asks of this site beside its pages: outputs of the notebooks where a page names them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
_OUTPUT = re.compile(r"^<!-- output (\S+) (\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A comment ``<!-- output quick-start.ipynb answer -->`` becomes the page's HTML output of the cell ``answer``."""
    return _OUTPUT.sub(lambda named: html_output(named[1], named[2]), markdown)


def html_output(notebook: str, cell: str) -> str:
    """The HTML that the cell of that id showed when the notebook was last run.

    Raises:
        ValueError: the notebook has no such output.
    """
    cells = json.loads((NOTEBOOKS / notebook).read_text(encoding="utf-8"))["cells"]
    for each in cells:
        for output in each.get("outputs", []) if each["id"] == cell else []:
            if "text/html" in output.get("data", {}):
                return "".join(output["data"]["text/html"])
    raise ValueError(f"{notebook} has no cell {cell!r} that showed HTML; run it, and keep its outputs.")
