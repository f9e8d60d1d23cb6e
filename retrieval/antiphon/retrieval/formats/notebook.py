"""Read Jupyter notebooks: Markdown cells, code cells, and their printed results, without pictures and other data."""

from __future__ import annotations

from typing import Any

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder
from antiphon.retrieval.formats.records import parse_json
from antiphon.retrieval.formats.text import decode_text

_MAX_RESULT = 2000  # characters of the results of one cell
_FENCE = "```"


def read_notebook_document(data: bytes, source: str) -> Document:
    """Read a notebook as Markdown; the place of a passage is its cell, counted from 1.

    Raises:
        ValueError: The file is damaged, or is not a notebook.
    """
    from antiphon.retrieval.formats.markup import read_markdown_document

    decoded = decode_text(data)
    parsed = parse_json(decoded.text)
    notebook: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    builder = DocumentBuilder()
    for number, cell in enumerate(_cells(notebook), 1):
        place, text = {"cell": str(number)}, _joined(cell.get("source") or cell.get("input"))
        if cell.get("cell_type") == "code":
            builder.add(_fenced(text, _language(notebook)), place)
            builder.add(_fenced(_results(cell)), place)
        elif text.strip():
            builder.add_document(read_markdown_document(text.encode("utf-8", "replace"), source), place)
    title = notebook.get("metadata", {}).get("title") if isinstance(notebook.get("metadata"), dict) else None
    return builder.build(source, {"title": title if isinstance(title, str) else ""}, decoded.warnings)


def _cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells. Up to version 3 of the format, the cells are in worksheets."""
    sheets = [each for each in _list(notebook.get("worksheets")) if isinstance(each, dict)]
    cells = notebook.get("cells") if "cells" in notebook else [c for each in sheets for c in _list(each.get("cells"))]
    if not isinstance(cells, list) or not ("cells" in notebook or sheets):
        raise ValueError("it is not a notebook (it has no cells)")
    return [cell for cell in cells if isinstance(cell, dict)]


def _results(cell: dict[str, Any]) -> str:
    """Return a cell's printed text and result, cut off after `_MAX_RESULT` characters."""
    texts = []
    for output in _list(cell.get("outputs")):
        if isinstance(output, dict):
            shown = output.get("data") if isinstance(output.get("data"), dict) else output
            error = f"{output['ename']}: {output.get('evalue')}" if "ename" in output else ""
            texts.append(_joined(output.get("text") or (shown or {}).get("text/plain") or error))
    result = "\n".join(text.rstrip("\n") for text in texts if text.strip())
    return result if len(result) <= _MAX_RESULT else result[:_MAX_RESULT] + " …"


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    info = metadata.get("language_info") if isinstance(metadata, dict) else None
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) and name.isalnum() else ""


def _fenced(text: str, language: str = "") -> str:
    if not text.strip():
        return ""
    fence = _FENCE
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.strip(chr(10)).rstrip()}\n{fence}"


def _joined(text: object) -> str:
    """Return a multi-line text as a string. Notebooks store it as a string or as a list of lines."""
    if isinstance(text, list):
        return "".join(line for line in text if isinstance(line, str))
    return text if isinstance(text, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
