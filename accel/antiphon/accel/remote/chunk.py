"""Parses the chunks of a streamed completion, and joins their parts of tool calls. Independent of the connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon.accel.decoding.stats import FinishReason

FINISH_REASONS: Mapping[str, FinishReason] = {"length": "length", "abort": "cancelled"}
"""Finish reasons of servers; any other one, such as "tool_calls", is "stop"."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a stream. Values that the server does not report are None.

    Attributes:
        text: New text.
        reasoning: New text of the thinking.
        tokens: New token ids.
        calls: Parts of tool calls.
        finish: Finish reason, in the last chunk of the completion.
        prompt_tokens: Number of prompt tokens.
        completion_tokens: Number of generated tokens so far.
        reasoning_tokens: Number of tokens of the thinking.
        accepted: Number of accepted draft tokens of the completion.
        drafted: Number of draft tokens of the completion.
        draft_steps: Number of steps of the completion that verified a draft.
    """

    text: str = ""
    reasoning: str = ""
    tokens: tuple[int, ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    finish: FinishReason | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    accepted: int | None = None
    drafted: int | None = None
    draft_steps: int | None = None


def parse_chunk(event: Mapping[str, Any]) -> Chunk:
    """Parse an event of either endpoint: chat completions (``delta``) or completions (``text``)."""
    choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
    delta = choice.get("delta") or {}
    finish = choice.get("finish_reason")
    usage = event.get("usage") or {}
    speculation = (event.get("metrics") or {}).get("speculative_decoding") or {}
    return Chunk(
        text=delta.get("content") or choice.get("text") or "",
        reasoning=delta.get("reasoning_content") or delta.get("reasoning") or "",
        tokens=tuple(choice.get("token_ids") or delta.get("token_ids") or ()),
        calls=tuple(delta.get("tool_calls") or ()),
        finish=FINISH_REASONS.get(finish, "stop") if finish else None,
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        reasoning_tokens=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
        accepted=speculation.get("num_accepted_draft_tokens"),
        drafted=speculation.get("num_draft_tokens"),
        draft_steps=speculation.get("num_spec_steps"),
    )


@dataclass(slots=True)
class ToolCallParts:
    """The tool calls of a completion, joined from the parts in its chunks."""

    _calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, parts: tuple[Mapping[str, Any], ...]) -> None:
        """Add the parts of one chunk. A tool's name arrives in one chunk, its arguments in several."""
        for part in parts:
            call = self._calls.setdefault(int(part.get("index") or 0), {"name": "", "arguments": ""})
            function = part.get("function") or {}
            for name in call:
                call[name] += function.get(name) or ""

    @property
    def text(self) -> str:
        """The calls as a local model writes them: JSON between ``<tool_call>`` tags (Hermes, Qwen, SmolLM)."""
        return "".join(map(_format_call, self._calls.values()))


def _format_call(call: Mapping[str, str]) -> str:
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except json.JSONDecodeError:
        arguments = call["arguments"]  # malformed as the model wrote it; `parse_tool_calls` reports that
    return (
        f"<tool_call>\n{json.dumps({'name': call['name'], 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
    )
