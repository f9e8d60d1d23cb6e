"""Converts between passages and LangChain's documents, and finds the references of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ToolMessage

from antiphon.integrations.references import REFERENCES, HiddenReferences, References
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


hide_arguments = REFERENCES_OF_DOCUMENTS.hidden


def references_of(messages: Sequence[BaseMessage], arguments: Mapping[str, Any] | None = None) -> tuple[Passage, ...]:
    """Return the references of a call: from its arguments, its messages and the results of tools in its messages.

    Messages carry references in ``additional_kwargs["references"]``; tool messages carry them in ``artifact``, as
    documents or as the mappings that a checkpointer stores. Other artifacts are ignored.

    Raises:
        TypeError: references are neither texts nor documents.
    """
    documents = [passage for message in messages for passage in _tool_documents(message)]
    return (*REFERENCES_OF_DOCUMENTS.of_call(arguments or {}, messages), *documents)


def hide_references(message: BaseMessage) -> BaseMessage:
    """Return a copy of the message whose references are hidden, or the message itself if it carries none."""
    changed: dict[str, Any] = {}
    if REFERENCES in message.additional_kwargs:
        changed["additional_kwargs"] = hide_arguments(message.additional_kwargs)
    if documents := _tool_documents(message):
        changed["artifact"] = HiddenReferences(documents)
    return message.model_copy(update=changed) if changed else message


def _tool_documents(message: BaseMessage) -> list[Passage]:
    """Return the documents in a tool message's artifact. A plain text in the artifact is not a reference."""
    artifact = message.artifact if isinstance(message, ToolMessage) else None
    if isinstance(artifact, HiddenReferences):
        return list(artifact.passages)
    items = artifact if isinstance(artifact, list | tuple) else [artifact]
    return [passage for item in items if not isinstance(item, str) and (passage := passage_of(item))]
