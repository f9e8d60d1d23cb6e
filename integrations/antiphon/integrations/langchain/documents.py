"""Converts between passages and LangChain's documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langchain_core.documents import Document

from antiphon.integrations.references import References
from antiphon.retrieval import Passage

SOURCE, START, SCORE = "source", "start_index", "relevance_score"
"""Metadata keys for a passage's source, start and score, as LangChain's own splitters and rerankers use them."""

ALSO_IN = "also_in"
"""The metadata key for the sources of other passages with the same text."""


def document_of(passage: Passage) -> Document:
    """Return the passage as a document with the same text and id; all other fields are in its metadata."""
    metadata: dict[str, Any] = {**passage.metadata, SOURCE: passage.source, START: passage.start}
    if passage.score is not None:
        metadata[SCORE] = passage.score
    if passage.also_in:
        metadata[ALSO_IN] = list(passage.also_in)
    return Document(page_content=passage.text, id=passage.id, metadata=metadata)


def passage_of(given: object) -> Passage | None:
    """Convert a text, a document, or a document saved as a mapping to a passage; return None for anything else."""
    if isinstance(given, Passage):
        return given
    if isinstance(given, str):
        return Passage.at("", 0, given)
    if isinstance(given, Document):
        return _passage(given.page_content, given.id, given.metadata)
    if isinstance(given, Mapping) and isinstance(text := given.get("page_content"), str):
        return _passage(text, given.get("id"), given.get("metadata") or {})
    return None


def _passage(text: str, identifier: object, metadata: Mapping[str, Any]) -> Passage:
    source, start, score = str(metadata.get(SOURCE) or ""), metadata.get(START), metadata.get(SCORE)
    others = {key: value for key, value in metadata.items() if key not in (SOURCE, START, SCORE, ALSO_IN)}
    passage = Passage.at(source, start if isinstance(start, int) else 0, text, others)
    return replace(
        passage,
        id=str(identifier or passage.id),
        score=float(score) if isinstance(score, int | float) else None,
        also_in=tuple(map(str, metadata.get(ALSO_IN) or ())),
    )


REFERENCES_OF_DOCUMENTS = References(passage_of, alone=(Document, Mapping), kinds="texts or documents")
passages_of = REFERENCES_OF_DOCUMENTS.passages
