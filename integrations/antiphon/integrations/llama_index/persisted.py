"""A vector store of LlamaIndex as one file: nodes and vectors as JSON. Knows nothing of searching.

The file begins with a sentence, so that LlamaIndex' own store, which takes any mapping for one of its own that is
empty, refuses it.
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

SENTENCE = "Nodes of an AntiphonVectorStore, format 1; load them with AntiphonVectorStore.from_persist_dir(folder)."


def save(rows: Iterable[tuple[BaseNode, Vectors]], path: str, fs: Any = None) -> None:
    """Write nodes and their vectors into a file, all of them or nothing; ``fs`` is a file system of fsspec."""
    text = json.dumps([SENTENCE, [[_told(node), vector.tolist()] for node, vector in rows]])
    if fs is None:
        write_file(Path(path), text.encode())
        return
    fs.makedirs(str(Path(path).parent), exist_ok=True)
    beside = f"{path}.part"
    with fs.open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    fs.mv(beside, path)


def load(path: str, fs: Any = None) -> tuple[Sequence[BaseNode], Vectors]:
    """The nodes of a file, and their vectors, of shape (nodes, dim).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds something else, or not all of it.
    """
    if not (Path(path).is_file() if fs is None else fs.exists(path)):
        raise FileNotFoundError(f"There is no vector store at {path}; persist one there, or say where it is.")
    try:
        text = Path(path).read_text(encoding="utf-8") if fs is None else _text(path, fs)
        sentence, rows = json.loads(text)
        if sentence != SENTENCE:
            raise ValueError(f"it does not begin with {SENTENCE!r}")
        nodes = [json_to_doc(node) for node, _ in rows]
        return nodes, np.array([vector for _, vector in rows], np.float32).reshape(len(rows), -1 if rows else 0)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} holds no vector store of Antiphon, or a damaged one ({error}); persist it anew."
        ) from error


def _told(node: BaseNode) -> dict[str, Any]:
    return dict(doc_to_json(node.model_copy(update={"embedding": None})))


def _text(path: str, fs: Any) -> str:
    with fs.open(path, "r", encoding="utf-8") as file:
        return str(file.read())
