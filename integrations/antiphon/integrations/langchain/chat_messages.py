"""Converts LangChain's messages to messages for chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from antiphon.accel.text.messages import Message

REASONING = "reasoning_content"
"""The field of a message that holds the model's thinking, in LangChain and in chat templates."""

ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (SystemMessage, "system"),
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
)
UNREADABLE = frozenset({"image", "audio", "video", "file"})
"""Types of content that a text model does not support; dropping them silently would change the question."""


def chat_messages(messages: Sequence[BaseMessage]) -> list[Message]:
    """Convert messages to role, text, tool calls and tool results.

    Raises:
        ValueError: a message has a role that templates do not know, or contains images, audio, video or files.
    """
    return [_message(index, message) for index, message in enumerate(messages)]


def _message(index: int, message: BaseMessage) -> Message:
    blocks = message.content_blocks
    found = UNREADABLE.intersection(block["type"] for block in blocks)
    if found:
        raise ValueError(f"messages[{index}] contains {', '.join(sorted(found))}; this model reads text only.")
    turn: dict[str, Any] = {"role": _role(index, message), "content": str(message.text)}
    if isinstance(message, AIMessage) and message.tool_calls:
        turn["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
            for call in message.tool_calls
        ]
    if reasoning := "".join(block.get("reasoning", "") for block in blocks if block["type"] == "reasoning"):
        turn[REASONING] = reasoning  # the template writes or drops it
    if isinstance(message, ToolMessage):
        turn |= {"tool_call_id": message.tool_call_id, "name": message.name or ""}
    return turn


def _role(index: int, message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    for kind, role in ROLES:
        if isinstance(message, kind):
            return role
    raise ValueError(f"messages[{index}] is a {type(message).__name__}; give system, human, AI, tool or chat messages.")
