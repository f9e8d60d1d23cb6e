"""Find the references of a LangChain call in its arguments, its messages and the results of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from antiphon.integrations.langchain.documents import REFERENCES_OF_DOCUMENTS, passage_of
from antiphon.integrations.references import REFERENCES, HiddenReferences
from antiphon.retrieval import Passage

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
