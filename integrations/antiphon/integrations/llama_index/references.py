"""Collects the references of one call and keeps them out of events and traces.

References come from the call, its messages, or the arguments of a prompt template. Nothing is kept from one call to the
next, so a call can never use another call's references.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from llama_index.core.base.llms.types import ChatMessage

from antiphon.integrations.hidden_references import REFERENCES, HiddenReferences
from antiphon.integrations.llama_index.nodes import passages_of
from antiphon.retrieval import Passage

# Set only while LlamaIndex's `predict` calls `chat`.
_TEMPLATE_REFERENCES: ContextVar[tuple[Passage, ...]] = ContextVar("references of a template", default=())


def hide_references(given: Mapping[str, Any], messages: Sequence[ChatMessage] = ()) -> dict[str, Any]:
    """Return the arguments of a call with all of its references in one hidden object.

    Args:
        given: the arguments of the call.
        messages: its messages, which may carry references.

    Raises:
        TypeError: references are neither texts nor nodes.
    """
    found = [*_passages(given.get(REFERENCES)), *_TEMPLATE_REFERENCES.get()]
    for message in messages:
        found += _passages(message.additional_kwargs.get(REFERENCES))
    kept = {name: value for name, value in given.items() if name != REFERENCES}
    return {**kept, REFERENCES: HiddenReferences(found)} if found else kept


def without_references(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages without the references that they carry."""
    return [_without(message) if REFERENCES in message.additional_kwargs else message for message in messages]


@contextmanager
def template_references(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Remove the references from a template's arguments; calls of the LLM in the ``with`` block use them."""
    token = _TEMPLATE_REFERENCES.set(tuple(_passages(arguments.get(REFERENCES))))
    try:
        yield {name: value for name, value in arguments.items() if name != REFERENCES}
    finally:
        _TEMPLATE_REFERENCES.reset(token)


def _without(message: ChatMessage) -> ChatMessage:
    kept = {name: value for name, value in message.additional_kwargs.items() if name != REFERENCES}
    return message.model_copy(update={"additional_kwargs": kept})


def _passages(given: object) -> list[Passage]:
    if given is None:
        return []
    return list(given.passages) if isinstance(given, HiddenReferences) else passages_of(given)
