"""Stores the nodes and vectors of a vector store in one JSON file.

The file starts with a header. LlamaIndex's own store reads any JSON object as an empty store; it refuses a
file of this form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc

from antiphon.accel.files import write_file
from antiphon.retrieval.vector_index.flat import Vectors

HEADER = "Nodes of an AntiphonVectorStore, format 1; load them with AntiphonVectorStore.from_persist_dir(folder)."


def save(rows: Iterable[tuple[BaseNode, Vectors]], path: str, fs: Any = None) -> None:
    """Write nodes and vectors to a file atomically.

    Args:
        rows: nodes and their vectors, shape (dim,).
        path: the file.
        fs: an fsspec file system; None is the local one.
    """
    text = json.dumps([HEADER, [[_as_json(node), vector.tolist()] for node, vector in rows]])
    if fs is None:
        write_file(Path(path), text.encode())
        return
    fs.makedirs(str(Path(path).parent), exist_ok=True)
    temporary = f"{path}.part"
    with fs.open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    fs.mv(temporary, path)


def load(path: str, fs: Any = None) -> tuple[Sequence[BaseNode], Vectors]:
    """Read nodes and vectors from a file.

    Args:
        path: the file.
        fs: an fsspec file system; None is the local one.

    Returns:
        The nodes, and their vectors, shape (nodes, dim).

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged or of another kind.
    """
    if not (Path(path).is_file() if fs is None else fs.exists(path)):
        raise FileNotFoundError(f"There is no vector store at {path}; persist one there, or give its path.")
    try:
        text = Path(path).read_text(encoding="utf-8") if fs is None else _text(path, fs)
        header, rows = json.loads(text)
        if header != HEADER:
            raise ValueError(f"it does not begin with {HEADER!r}")
        nodes = [json_to_doc(node) for node, _ in rows]
        return nodes, np.array([vector for _, vector in rows], np.float32).reshape(len(rows), -1 if rows else 0)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is not a vector store of Antiphon, or is damaged ({error}); persist it again."
        ) from error


def _as_json(node: BaseNode) -> dict[str, Any]:
    return dict(doc_to_json(node.model_copy(update={"embedding": None})))


def _text(path: str, fs: Any) -> str:
    with fs.open(path, "r", encoding="utf-8") as file:
        return str(file.read())
