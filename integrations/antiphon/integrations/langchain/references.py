"""The references of one call: where they come in, and how they stay out of traces.

A reference is what this call's caller handed over, or what a tool returned into this call's own messages. Nothing is
remembered from one call to the next, so nobody is ever offered what another was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from antiphon.integrations.langchain.documents import passage_of, passages_of
from antiphon.integrations.opaque_references import REFERENCES, OpaqueReferences
from antiphon.retrieval import Passage


def references_of(messages: Sequence[BaseMessage], given: object = None) -> tuple[Passage, ...]:
    """What the answer may quote: what the call was given, then what its messages carry.

    Messages carry references in ``additional_kwargs["references"]``, and a tool's in its ``artifact``: the documents
    there, or the plain mappings that a checkpointer makes of them; other artifacts are none.

    Raises:
        TypeError: what was given as references is neither texts nor documents.
    """
    found = _handed(given)
    for message in messages:
        found += _handed(message.additional_kwargs.get(REFERENCES)) + _returned(message)
    return tuple(found)


def hidden(message: BaseMessage) -> BaseMessage:
    """The same message with its references out of sight; where it carries none, the message itself."""
    handed, returned = _handed(message.additional_kwargs.get(REFERENCES)), _returned(message)
    changed: dict[str, Any] = {}
    if handed:
        changed["additional_kwargs"] = {**message.additional_kwargs, REFERENCES: OpaqueReferences(handed)}
    if returned:
        changed["artifact"] = OpaqueReferences(returned)
    return message.model_copy(update=changed) if changed else message


def gathered(messages: Sequence[BaseMessage], given: Mapping[str, Any]) -> tuple[list[BaseMessage], dict[str, Any]]:
    """The messages without their references, and the arguments of the call with all references in one place."""
    found = references_of(messages, given.get(REFERENCES))
    if not found:
        return list(messages), {name: value for name, value in given.items() if name != REFERENCES}
    return [_bare(message) for message in messages], {**given, REFERENCES: OpaqueReferences(found)}


def _bare(message: BaseMessage) -> BaseMessage:
    changed: dict[str, Any] = {}
    if REFERENCES in message.additional_kwargs:
        kept = {name: value for name, value in message.additional_kwargs.items() if name != REFERENCES}
        changed["additional_kwargs"] = kept
    if _returned(message):
        changed["artifact"] = None
    return message.model_copy(update=changed) if changed else message


def _handed(given: object) -> list[Passage]:
    if given is None:
        return []
    return list(given.passages) if isinstance(given, OpaqueReferences) else passages_of(given)


def _returned(message: BaseMessage) -> list[Passage]:
    """The documents that a tool returned beside its text; a text alone is another tool's own business."""
    artifact = message.artifact if isinstance(message, ToolMessage) else None
    if isinstance(artifact, OpaqueReferences):
        return list(artifact.passages)
    items = artifact if isinstance(artifact, list | tuple) else [artifact]
    return [passage for item in items if not isinstance(item, str) and (passage := passage_of(item))]
