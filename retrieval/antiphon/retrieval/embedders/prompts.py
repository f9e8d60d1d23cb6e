"""Prompts of embedding models: texts that a model is trained to read before a question or a document."""

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
"""For each family of models: a pattern for names, the query prompt, and the document prompt."""

NO_PROMPTS = ("", "")


def family_prompts(model: str) -> tuple[str, str]:
    """Return the query prompt and document prompt of a model's family; empty if the family is unknown."""
    found = ((query, document) for part, query, document in FAMILIES if re.search(part, model.lower()))
    return next(found, NO_PROMPTS)


def with_prompts(name: str, query: str | None, document: str | None) -> str:
    """Append prompts to the name of an embedder: ``NAME?query=...&document=...``.

    An index stores this name, and loads the embedder by this name.

    Args:
        query: The prompt for questions. None: the prompt of the model or of its family.
        document: The prompt for documents. None: as for ``query``.
    """
    given = {"query": query, "document": document}
    own = {kind: prompt for kind, prompt in given.items() if prompt is not None}
    return f"{name}?{urlencode(own, quote_via=quote)}" if own else name


def split_prompts(name: str) -> tuple[str, dict[str, str]]:
    """Split an embedder's name into the name without prompts, and the prompts by kind."""
    plain, _, text = name.rpartition("?")
    prompts = dict(parse_qsl(text, keep_blank_values=True)) if plain else {}
    return (plain, prompts) if prompts and prompts.keys() <= {"query", "document"} else (name, {})
