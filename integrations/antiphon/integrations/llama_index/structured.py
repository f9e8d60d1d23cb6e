"""Structured output for LlamaIndex: the schema in the prompt, and objects from partial answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.program.utils import create_flexible_model
from pydantic import BaseModel
from pydantic_core import from_json

Model = TypeVar("Model", bound=BaseModel)

TOOL_ARGUMENTS = ("tool_required", "tool_choice", "allow_parallel_tool_calls")
"""Arguments about tools that LlamaIndex programs pass; they are dropped, because the schema replaces them."""


def with_schema(messages: Sequence[ChatMessage], schema: Mapping[str, Any]) -> list[ChatMessage]:
    """Append the schema to the last user message.

    Args:
        messages: the conversation.
        schema: the JSON schema of the answer.
    """
    text = f"Answer in JSON that follows this schema:\n{json.dumps(schema, ensure_ascii=False)}"
    if messages and messages[-1].role == MessageRole.USER:
        last = messages[-1].model_copy(deep=True)
        last.content = f"{last.content or ''}\n\n{text}"
        return [*messages[:-1], last]
    return [*messages, ChatMessage(text)]


def call_arguments(llm_kwargs: Mapping[str, Any] | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the call with the schema.

    Args:
        llm_kwargs: the program's arguments.
        schema: the JSON schema of the answer.
    """
    kept = {name: value for name, value in (llm_kwargs or {}).items() if name not in TOOL_ARGUMENTS}
    return {**kept, "json_schema": schema}


def partial_object(text: str, output_cls: type[Model]) -> BaseModel | None:
    """Parse the object from a partial answer; return None if nothing can be parsed yet.

    Args:
        text: the answer so far.
        output_cls: the pydantic class.
    """
    try:
        known = from_json(text, allow_partial=True)
    except ValueError:
        return None
    return create_flexible_model(output_cls).model_validate(known) if isinstance(known, dict) else None
