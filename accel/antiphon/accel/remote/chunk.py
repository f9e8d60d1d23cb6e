"""One chunk of a streamed answer, as plain values: what it adds, and what it tells of cost. Knows no connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon.accel.decoding.stats import FinishReason

FINISHES: Mapping[str, FinishReason] = {"length": "length", "abort": "cancelled"}
"""What servers call the ends that are not "stop"; whatever else they say ("tool_calls") is a text that ended itself."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event of a stream says: text, token ids, parts of calls, why it ends, and how much there was.

    ``prompt`` and ``written`` count tokens up to here; ``accepted``, ``drafted`` and ``verified``, the steps that had a
    draft, are those of the whole answer. None is what the server does not tell.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    finish: FinishReason | None = None
    prompt: int | None = None
    written: int | None = None
    accepted: int | None = None
    drafted: int | None = None
    verified: int | None = None


def parse_chunk(event: Mapping[str, Any]) -> Chunk:
    """The event of either endpoint: chat completions (``delta``) or completions (``text``)."""
    choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
    delta = choice.get("delta") or {}
    ended = choice.get("finish_reason")
    usage = event.get("usage") or {}
    speculation = (event.get("metrics") or {}).get("speculative_decoding") or {}
    return Chunk(
        text=delta.get("content") or choice.get("text") or "",
        tokens=tuple(choice.get("token_ids") or delta.get("token_ids") or ()),
        calls=tuple(delta.get("tool_calls") or ()),
        finish=FINISHES.get(ended, "stop") if ended else None,
        prompt=usage.get("prompt_tokens"),
        written=usage.get("completion_tokens"),
        accepted=speculation.get("num_accepted_draft_tokens"),
        drafted=speculation.get("num_draft_tokens"),
        verified=speculation.get("num_spec_steps"),
    )


@dataclass(slots=True)
class ToolCallParts:
    """The tools that an answer calls, put together from their parts."""

    _parts: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, parts: tuple[Mapping[str, Any], ...]) -> None:
        """Read the parts of one chunk: names come whole, arguments piece by piece."""
        for part in parts:
            call = self._parts.setdefault(int(part.get("index") or 0), {"name": "", "arguments": ""})
            function = part.get("function") or {}
            for name in call:
                call[name] += function.get(name) or ""

    @property
    def text(self) -> str:
        """The calls as a model writes them that is run here, each between tags (Hermes, Qwen, SmolLM)."""
        return "".join(map(_written, self._parts.values()))


def _written(call: Mapping[str, str]) -> str:
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except json.JSONDecodeError:
        arguments = call["arguments"]  # broken, as the model wrote it; who reads the call says so
    return (
        f"<tool_call>\n{json.dumps({'name': call['name'], 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
    )
