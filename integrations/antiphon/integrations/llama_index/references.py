"""The references of one call of LlamaIndex: where they come in, and how they stay out of events and traces.

They are handed over with a call, with its messages, or with the arguments of a prompt's template, and belong to this
call alone: nothing is remembered, so nobody is ever offered what another was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from llama_index.core.base.llms.types import ChatMessage

from antiphon.integrations.llama_index.nodes import passages_of
from antiphon.integrations.opaque_references import REFERENCES, OpaqueReferences
from antiphon.retrieval import Passage

# Set while a prompt of LlamaIndex is on its way from `predict` to `chat` in one and the same frame, never longer.
_OF_TEMPLATE: ContextVar[tuple[Passage, ...]] = ContextVar("references of a template", default=())


def hidden(given: Mapping[str, Any], messages: Sequence[ChatMessage] = ()) -> dict[str, Any]:
    """The arguments of a call with all of its references in one place and out of sight.

    Raises:
        TypeError: what was given as references is neither texts nor nodes.
    """
    found = [*_handed(given.get(REFERENCES)), *_OF_TEMPLATE.get()]
    for message in messages:
        found += _handed(message.additional_kwargs.get(REFERENCES))
    kept = {name: value for name, value in given.items() if name != REFERENCES}
    return {**kept, REFERENCES: OpaqueReferences(found)} if found else kept


def bare(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages without the references that they carry."""
    return [_bare(message) if REFERENCES in message.additional_kwargs else message for message in messages]


@contextmanager
def of_template(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a template without its references, which the call in this block is given."""
    token = _OF_TEMPLATE.set(tuple(_handed(arguments.get(REFERENCES))))
    try:
        yield {name: value for name, value in arguments.items() if name != REFERENCES}
    finally:
        _OF_TEMPLATE.reset(token)


def _bare(message: ChatMessage) -> ChatMessage:
    kept = {name: value for name, value in message.additional_kwargs.items() if name != REFERENCES}
    return message.model_copy(update={"additional_kwargs": kept})


def _handed(given: object) -> list[Passage]:
    if given is None:
        return []
    return list(given.passages) if isinstance(given, OpaqueReferences) else passages_of(given)
