"""A response as OpenAI's newer clients read it, whole and as its events. Decodes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from antiphon.accel.text.tool_calls import shown
from antiphon.pipelines.server.chat_objects import ChatAsked, calls_object
from antiphon.pipelines.server.figures import annotations_of, metrics_of
from antiphon.pipelines.server.jobs import Begun, Finished, Grown, TextSoFar
from antiphon.pipelines.server.response_requests import NamedChoice, ResponseRequest


@dataclass(frozen=True, slots=True)
class ResponseAsked:
    """A request, and the conversation that it is."""

    request: ResponseRequest
    chat: ChatAsked
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    message_id: str = field(default_factory=lambda: f"msg_{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The response, as far as it has come."""
        asked, choice = self.request, self.request.tool_choice
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "model": self.chat.served.id,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "max_tool_calls": None,
            "metadata": asked.metadata or {},
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "reasoning": None,
            "safety_identifier": None,
            "service_tier": "default",
            "store": False,
            "background": False,
            "temperature": asked.temperature or 0.0,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "presence_penalty": self.chat.request.presence_penalty or 0.0,
            "frequency_penalty": self.chat.request.frequency_penalty or 0.0,
            "top_logprobs": 0,
            "text": {"format": {"type": "text"}} if asked.text is None else _as_given(asked.text),
            "tool_choice": choice.model_dump() if isinstance(choice, NamedChoice) else choice or "auto",
            "tools": [{"strict": False, **tool.model_dump()} for tool in asked.tools or ()],
            "truncation": "disabled",
            "usage": None,
            "user": asked.user,
            **more,
        }


def response_object(response: ResponseAsked, text: TextSoFar) -> dict[str, Any]:
    """The whole response."""
    if text.ended is None or text.begun is None:
        raise RuntimeError("The text has not ended.")
    return _ended(response, text.text, text.begun, text.ended)


class ResponseStream:
    """A response while it grows, as the events that a client reads."""

    def __init__(self, response: ResponseAsked) -> None:
        self._response = response
        self._number = 0
        self._text = ""
        self._shown = ""
        self._begun: Begun | None = None

    def begin(self, event: Begun) -> list[dict[str, Any]]:
        """The response and its message are there."""
        self._begun = event
        empty = self._response.body("in_progress", [])
        message = _message(self._response, "in_progress", [])
        return [
            self._event("response.created", response=empty),
            self._event("response.in_progress", response=empty),
            self._event("response.output_item.added", output_index=0, item=message),
            self._event("response.content_part.added", **self._place(), part=_part("", [])),
        ]

    def grow(self, event: Grown) -> list[dict[str, Any]]:
        """More of its text, as far as it is certain to be no call of a tool."""
        self._text += event.text
        prompt = self._response.chat.prompt
        certain = self._text if not prompt.tools else shown(prompt.opening + self._text)
        return self._show(certain)

    def finish(self, event: Finished) -> list[dict[str, Any]]:
        """What is left, and the whole."""
        if self._begun is None:
            return []
        whole = _ended(self._response, self._text, self._begun, event)
        said = self._response.chat.said(self._text)
        events = self._show(said.content)
        message = next(item for item in whole["output"] if item["type"] == "message")
        events.append(self._event("response.output_text.done", **self._place(), text=said.content, logprobs=[]))
        events.append(self._event("response.content_part.done", **self._place(), part=message["content"][0]))
        events.append(self._event("response.output_item.done", output_index=0, item=message))
        for place, item in enumerate(whole["output"]):
            if item["type"] == "function_call":
                events += self._called(place, item)
        return [*events, self._event(f"response.{whole['status']}", response=whole)]

    def _show(self, certain: str) -> list[dict[str, Any]]:
        new, self._shown = certain[len(self._shown) :], certain
        if not new:
            return []
        return [self._event("response.output_text.delta", **self._place(), delta=new, logprobs=[])]

    def _called(self, place: int, item: dict[str, Any]) -> list[dict[str, Any]]:
        named = {"output_index": place, "item_id": item["id"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        arguments = item["arguments"]
        return [
            self._event("response.output_item.added", output_index=place, item=begun),
            self._event("response.function_call_arguments.delta", **named, delta=arguments),
            self._event("response.function_call_arguments.done", **named, name=item["name"], arguments=arguments),
            self._event("response.output_item.done", output_index=place, item=item),
        ]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._response.message_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _ended(response: ResponseAsked, text: str, begun: Begun, ended: Finished) -> dict[str, Any]:
    said = response.chat.said(text)
    annotations = annotations_of(said.content, begun.passages) if begun.passages else []
    flat = [{"type": each["type"], **each["url_citation"]} for each in annotations]
    is_whole = ended.completion.finish_reason == "stop"
    status = "completed" if is_whole else "incomplete"
    output = [_message(response, status, [_part(said.content, flat)])]
    for call in calls_object(said):
        called = {"call_id": call["id"], **call["function"]}
        output.append({"type": "function_call", "id": f"fc_{uuid4().hex}", "status": "completed", **called})
    usage, steps = ended.completion.usage, ended.completion.steps
    told = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": max(usage.prompt_tokens - steps.prefill_tokens, 0)},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
    why = None if is_whole else {"reason": "max_output_tokens"}
    return response.body(status, output, usage=told, incomplete_details=why, metrics=metrics_of([ended]))


def _message(response: ResponseAsked, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    named = {"type": "message", "id": response.message_id, "role": "assistant", "status": status}
    return {**named, "content": content}


def _part(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _as_given(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = options.model_dump(by_alias=True, exclude_none=True)
    return found if "format" in found else {"format": {"type": "text"}, **found}
