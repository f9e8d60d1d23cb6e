"""Converts LlamaIndex's messages to messages for chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)

from antiphon.accel.text.messages import Message

ROLES = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}
UNREADABLE = (AudioBlock, DocumentBlock, ImageBlock, VideoBlock)
"""Types of content that a text model does not support; dropping them silently would change the question."""


def chat_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Convert messages to role, text, tool calls and tool results.

    Raises:
        ValueError: a message contains images, audio, video or documents.
    """
    return [_message(index, message) for index, message in enumerate(messages)]


def _message(index: int, message: ChatMessage) -> Message:
    if unread := [type(block).__name__ for block in message.blocks if isinstance(block, UNREADABLE)]:
        raise ValueError(f"messages[{index}] contains {', '.join(unread)}; this model reads text only.")
    text = "".join(block.text for block in message.blocks if isinstance(block, TextBlock))
    turn: dict[str, Any] = {"role": ROLES[message.role], "content": text}
    if thought := "".join(block.content or "" for block in message.blocks if isinstance(block, ThinkingBlock)):
        turn["reasoning_content"] = thought  # the template writes or drops it
    calls = [_call(block) for block in message.blocks if isinstance(block, ToolCallBlock)]
    if calls:
        turn["tool_calls"] = calls
    if turn["role"] == "tool":
        turn |= {"tool_call_id": message.additional_kwargs.get("tool_call_id", ""), "name": ""}
    return turn


def arguments_of(block: ToolCallBlock) -> dict[str, Any]:
    """Return the arguments of a tool call as a dict; LlamaIndex may store them as a JSON text."""
    given = block.tool_kwargs
    return dict(json.loads(given) if isinstance(given, str) else given)


def _call(block: ToolCallBlock) -> Mapping[str, Any]:
    function = {"name": block.tool_name, "arguments": arguments_of(block)}
    return {"type": "function", "id": block.tool_call_id or "", "function": function}
