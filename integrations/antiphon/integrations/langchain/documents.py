"""Passages and LangChain's documents, each made from the other. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.documents import Document

from antiphon.integrations.coercion import coerce_passages
from antiphon.retrieval import Passage

SOURCE, START, SCORE = "source", "start_index", "relevance_score"
"""Where a document's metadata say what a passage knows of itself, as LangChain's own splitters and rerankers do."""


def document_of(passage: Passage) -> Document:
    """The passage as LangChain has it: the same text and id, everything else in its metadata."""
    metadata: dict[str, Any] = {**passage.metadata, SOURCE: passage.source, START: passage.start}
    if passage.score is not None:
        metadata[SCORE] = passage.score
    return Document(page_content=passage.text, id=passage.id, metadata=metadata)


def passage_of(given: object) -> Passage | None:
    """The passage that a text, a document, or a document saved as a plain mapping is; None for anything else."""
    if isinstance(given, Passage):
        return given
    if isinstance(given, str):
        return Passage.at("", 0, given)
    if isinstance(given, Document):
        return _passage(given.page_content, given.id, given.metadata)
    if isinstance(given, Mapping) and isinstance(text := given.get("page_content"), str):
        return _passage(text, given.get("id"), given.get("metadata") or {})
    return None


def passages_of(given: object, name: str = "references") -> list[Passage]:
    """The passages that a caller handed over: a list of texts, documents, or documents saved as plain mappings.

    Raises:
        TypeError: it is no list, or something in it is none of these.
    """
    return coerce_passages(given, passage_of, alone=(Document, Mapping), kinds="texts or documents", name=name)


def _passage(text: str, identifier: object, metadata: Mapping[str, Any]) -> Passage:
    source, start, score = str(metadata.get(SOURCE) or ""), metadata.get(START), metadata.get(SCORE)
    begin = start if isinstance(start, int) else 0
    return Passage(
        text=text,
        id=str(identifier or Passage.at(source, begin, text).id),
        source=source,
        start=begin,
        end=begin + len(text),
        score=float(score) if isinstance(score, int | float) else None,
        metadata={key: value for key, value in metadata.items() if key not in (SOURCE, START, SCORE)},
    )
