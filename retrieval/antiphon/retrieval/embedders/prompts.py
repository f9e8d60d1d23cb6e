"""Prompts of embedding models: the text that they were trained to read before a question or a document."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode

_INSTRUCTION = "Instruct: Given a question, retrieve passages that answer it\nQuery: "

FAMILIES = (
    ("nomic", "search_query: ", "search_document: "),
    ("e5-mistral|e5-large-instruct|qwen3-embedding|qwen2-.*instruct", _INSTRUCTION, ""),
    ("e5-", "query: ", "passage: "),
    ("embeddinggemma", "task: search result | query: ", "title: none | text: "),
    ("bge-.*-en|mxbai|arctic-embed", "Represent this sentence for searching relevant passages: ", ""),
)
"""Families of models by a regular expression for their names, with their prompts of questions and of documents."""

NO_PROMPTS = ("", "")


def family_prompts(model: str) -> tuple[str, str]:
    """Return the prompts of questions and of documents of a model's family; both empty if it needs none."""
    found = ((query, document) for part, query, document in FAMILIES if re.search(part, model.lower()))
    return next(found, NO_PROMPTS)


def with_prompts(name: str, query: str | None, document: str | None) -> str:
    """Return the name of an embedder with prompts, by which an index loads it again: ``NAME?query=...&document=...``.

    Args:
        query: The prompt of questions. None: that of the model or its family.
        document: The prompt of documents, likewise.
    """
    given = {"query": query, "document": document}
    own = {kind: prompt for kind, prompt in given.items() if prompt is not None}
    return f"{name}?{urlencode(own, quote_via=quote)}" if own else name


def split_prompts(name: str) -> tuple[str, dict[str, str]]:
    """Return the name of an embedder without its prompts, and the prompts of ``query`` and ``document`` that it has."""
    plain, _, text = name.rpartition("?")
    prompts = dict(parse_qsl(text, keep_blank_values=True)) if plain else {}
    return (plain, prompts) if prompts and prompts.keys() <= {"query", "document"} else (name, {})
