"""A chat completion as OpenAI's clients read it, whole and chunk by chunk. Knows no HTTP and decodes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.text.tool_calls import Said, shown
from antiphon.accel.text.tool_calls import read as read_calls
from antiphon.pipelines.server.figures import (
    annotations_of,
    chat_logprobs,
    metrics_of,
    passage_object,
    usage_of,
    whole_usage,
)
from antiphon.pipelines.server.jobs import Begun, Event, Finished, Grown, TextSoFar
from antiphon.pipelines.server.prompts import ChatPrompt
from antiphon.pipelines.server.requests import ChatRequest
from antiphon.pipelines.server.runs import Runs
from antiphon.pipelines.server.served import ServedModel

FINISHES: dict[FinishReason, str] = {"stop": "stop", "length": "length", "cancelled": "stop"}


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """A request and what was made of it."""

    request: ChatRequest
    served: ServedModel
    prompt: ChatPrompt
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A chunk of the stream."""
        named = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.served.id}
        return {**named, "choices": choices, **more}

    def said(self, text: str) -> Said:
        """The text told apart from the tools that it calls."""
        if not self.prompt.tools:
            return Said(text)
        said = read_calls(self.prompt.opening + text, self.prompt.tools)
        if self.request.parallel_tool_calls is False:
            return Said(said.content, said.calls[:1], said.broken)
        return said


def whole_chat(chat: ChatAsked, texts: Sequence[TextSoFar]) -> dict[str, Any]:
    """The whole completion, with all its choices."""
    ended = [text.ended for text in texts if text.ended is not None]
    choices = [_choice(chat, place, text) for place, text in enumerate(texts)]
    return {
        "id": chat.id,
        "object": "chat.completion",
        "created": chat.created,
        "model": chat.served.id,
        "choices": choices,
        "usage": whole_usage(ended, is_predicted=chat.request.prediction is not None),
        "metrics": metrics_of(ended),
    }


def _choice(chat: ChatAsked, place: int, text: TextSoFar) -> dict[str, Any]:
    said = chat.said(text.text)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": said.content or (None if said.calls else ""),
        "refusal": None,
    }
    if said.calls:
        message["tool_calls"] = calls_object(said)
    if text.begun is not None and text.begun.passages:
        message["annotations"] = annotations_of(said.content, text.begun.passages)
    return {
        "index": place,
        "message": message,
        "finish_reason": _finish(said, text.ended),
        "logprobs": _logprobs(chat, text),
        **({"token_ids": text.tokens} if chat.request.return_token_ids else {}),
    }


def _logprobs(chat: ChatAsked, text: TextSoFar) -> dict[str, Any] | None:
    if not chat.request.logprobs or text.ended is None:
        return None
    return chat_logprobs(text.ended.completion.logprobs, chat.served.language_model.tokenizer)


def _finish(said: Said, ended: Finished | None) -> str:
    return "tool_calls" if said.calls else FINISHES[ended.completion.finish_reason] if ended else "stop"


def calls_object(said: Said) -> list[dict[str, Any]]:
    """The tools that an answer calls."""
    return [
        {
            "id": f"call_{call.id}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for call in said.calls
    ]


class ChoiceStream:
    """One choice while it grows, as the chunks that a client reads."""

    def __init__(self, chat: ChatAsked, place: int) -> None:
        self._chat = chat
        self._place = place
        self._text = ""
        self._shown = ""
        self._prompt = 0
        self._written = 0
        self._begun: Begun | None = None
        self._runs: Runs | None = None
        self.ended: Finished | None = None

    def push(self, event: Event) -> list[dict[str, Any]]:
        """The chunks of an event."""
        match event:
            case Begun():
                self._begun, self._prompt = event, event.stream.prompt_tokens
                options = self._chat.request.stream_options
                self._runs = Runs(event.passages) if options is not None and options.include_runs else None
                passages: dict[str, Any] = {"passages": list(map(passage_object, event.passages))} if self._runs else {}
                return [self._chunk({"role": "assistant", "content": ""}, **passages)]
            case Grown():
                return self._grow(event)
            case Finished():
                self.ended = event
                return [self._last(event)]

    def _grow(self, event: Grown) -> list[dict[str, Any]]:
        chat, asked = self._chat, self._chat.request
        self._text += event.text
        self._written = event.written
        certain = self._text if not chat.prompt.tools else shown(chat.prompt.opening + self._text)
        new, self._shown = certain[len(self._shown) :], certain
        more: dict[str, Any] = {}
        if asked.return_token_ids:
            more["token_ids"] = list(event.tokens)
        if asked.logprobs:
            more["logprobs"] = chat_logprobs(event.logprobs, chat.served.language_model.tokenizer)
        runs: dict[str, Any] = {} if self._runs is None else {"runs": self._runs.push(event.text, event.origins)}
        if not new and not more and not any(runs.values()):
            return []
        return [self._chunk({"content": new}, choice=more, **runs)]

    def _last(self, event: Finished) -> dict[str, Any]:
        said = self._chat.said(self._text)
        delta: dict[str, Any] = {}
        if rest := said.content[len(self._shown) :]:
            delta["content"] = rest
        if said.calls:
            delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls_object(said))]
        if self._begun is not None and self._begun.passages:
            delta["annotations"] = annotations_of(said.content, self._begun.passages)
        return self._chunk(delta, finish=_finish(said, event))

    def _chunk(
        self, delta: dict[str, Any], *, finish: str | None = None, choice: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        options = self._chat.request.stream_options
        if options is not None and options.continuous_usage_stats:
            more["usage"] = usage_of(self._prompt, self._written)
        shown_choice = {"index": self._place, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._chat.chunk([{**shown_choice, **(choice or {})}], **more)
