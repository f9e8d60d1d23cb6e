"""Objects of a pydantic class as LlamaIndex asks an LLM for them: what is asked, and what of an answer is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.program.utils import create_flexible_model
from pydantic import BaseModel
from pydantic_core import from_json

Model = TypeVar("Model", bound=BaseModel)

OF_TOOLS = ("tool_required", "tool_choice", "allow_parallel_tool_calls")
"""What a program of LlamaIndex says of tools, where an answer in a schema needs none."""


def told(messages: Sequence[ChatMessage], schema: Mapping[str, Any]) -> list[ChatMessage]:
    """The messages, whose last turn of a user says which JSON is wanted."""
    text = f"Answer in JSON that follows this schema:\n{json.dumps(schema, ensure_ascii=False)}"
    if messages and messages[-1].role == MessageRole.USER:
        last = messages[-1].model_copy(deep=True)
        last.content = f"{last.content or ''}\n\n{text}"
        return [*messages[:-1], last]
    return [*messages, ChatMessage(text)]


def asked(llm_kwargs: Mapping[str, Any] | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the call: its own, and the schema."""
    kept = {name: value for name, value in (llm_kwargs or {}).items() if name not in OF_TOOLS}
    return {**kept, "json_schema": schema}


def partial_object(text: str, output_cls: type[Model]) -> BaseModel | None:
    """What a text that is still growing says of the object; None as long as it says nothing."""
    try:
        known = from_json(text, allow_partial=True)
    except ValueError:
        return None
    return create_flexible_model(output_cls).model_validate(known) if isinstance(known, dict) else None
