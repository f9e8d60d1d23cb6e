"""Collects the references of one call and keeps them out of traces.

References come from the caller, or from tool results in the call's messages. Nothing is kept from one call to the next,
so a call can never use another call's references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from antiphon.integrations.hidden_references import REFERENCES, HiddenReferences
from antiphon.integrations.langchain.documents import passage_of, passages_of
from antiphon.retrieval import Passage


def references_of(messages: Sequence[BaseMessage], given: object = None) -> tuple[Passage, ...]:
    """Return the references of a call: those of its argument, then those of its messages.

    Messages carry references in ``additional_kwargs["references"]``; tool messages carry them in ``artifact``, as
    documents or as the mappings that a checkpointer stores. Other artifacts are ignored.

    Args:
        messages: the messages of the call.
        given: the argument ``references`` of the call.

    Raises:
        TypeError: references are neither texts nor documents.
    """
    found = _passages(given)
    for message in messages:
        found += _passages(message.additional_kwargs.get(REFERENCES)) + _tool_documents(message)
    return tuple(found)


def hide_references(message: BaseMessage) -> BaseMessage:
    """Return a copy of the message whose references are hidden, or the message itself if it carries none."""
    attached, documents = _passages(message.additional_kwargs.get(REFERENCES)), _tool_documents(message)
    changed: dict[str, Any] = {}
    if attached:
        changed["additional_kwargs"] = {**message.additional_kwargs, REFERENCES: HiddenReferences(attached)}
    if documents:
        changed["artifact"] = HiddenReferences(documents)
    return message.model_copy(update=changed) if changed else message


def move_to_arguments(
    messages: Sequence[BaseMessage], given: Mapping[str, Any]
) -> tuple[list[BaseMessage], dict[str, Any]]:
    """Move the references of messages into the arguments of the call.

    Args:
        messages: the messages of the call.
        given: the arguments of the call.

    Returns:
        The messages without references, and the arguments with all references in one hidden object.
    """
    found = references_of(messages, given.get(REFERENCES))
    if not found:
        return list(messages), {name: value for name, value in given.items() if name != REFERENCES}
    return [_without_references(message) for message in messages], {**given, REFERENCES: HiddenReferences(found)}


def _without_references(message: BaseMessage) -> BaseMessage:
    changed: dict[str, Any] = {}
    if REFERENCES in message.additional_kwargs:
        kept = {name: value for name, value in message.additional_kwargs.items() if name != REFERENCES}
        changed["additional_kwargs"] = kept
    if _tool_documents(message):
        changed["artifact"] = None
    return message.model_copy(update=changed) if changed else message


def _passages(given: object) -> list[Passage]:
    if given is None:
        return []
    return list(given.passages) if isinstance(given, HiddenReferences) else passages_of(given)


def _tool_documents(message: BaseMessage) -> list[Passage]:
    """Return the documents in a tool message's artifact; a plain text there is not a reference."""
    artifact = message.artifact if isinstance(message, ToolMessage) else None
    if isinstance(artifact, HiddenReferences):
        return list(artifact.passages)
    items = artifact if isinstance(artifact, list | tuple) else [artifact]
    return [passage for item in items if not isinstance(item, str) and (passage := passage_of(item))]
