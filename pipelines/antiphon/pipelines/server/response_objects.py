"""A response as OpenAI's newer clients read it, whole. Decodes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from antiphon.accel.decoding.logprobs import TokenLogprob
from antiphon.pipelines.server.chat_objects import ChatAsked, calls_object
from antiphon.pipelines.server.figures import annotations_of, chat_logprobs, metrics_of
from antiphon.pipelines.server.jobs import Begun, Finished, TextSoFar
from antiphon.pipelines.server.response_requests import ResponseRequest


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
            "prompt_cache_key": asked.prompt_cache_key,
            "reasoning": None,
            "safety_identifier": asked.safety_identifier,
            "service_tier": "default",
            "store": False,
            "background": False,
            "temperature": asked.temperature or 0.0,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "presence_penalty": self.chat.request.presence_penalty or 0.0,
            "frequency_penalty": self.chat.request.frequency_penalty or 0.0,
            "top_logprobs": asked.top_logprobs or 0,
            "text": {"format": {"type": "text"}} if asked.text is None else _as_given(asked.text),
            "tool_choice": choice or "auto" if isinstance(choice, str | None) else choice.model_dump(),
            "tools": [{"strict": False, **tool.model_dump()} for tool in asked.tools or ()],
            "truncation": "disabled",
            "usage": None,
            "user": asked.user,
            **more,
        }

    def message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The item of what is said."""
        named = {"type": "message", "id": self.message_id, "role": "assistant", "status": status}
        return {**named, "content": content}

    def logprobs(self, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """Logprobs of a text, none where nobody asked for them."""
        if not self.chat.request.logprobs:
            return []
        entries: list[dict[str, Any]] = chat_logprobs(found, self.chat.served.language_model.tokenizer)["content"]
        return entries

    def ended(self, text: str, begun: Begun, ended: Finished) -> dict[str, Any]:
        """The whole response: what is said, unless there are calls alone, and the tools that are called."""
        said, completion = self.chat.said(text), ended.completion
        is_whole = completion.finish_reason == "stop"
        status = "completed" if is_whole else "incomplete"
        output = [_call(call) for call in calls_object(said)]
        if said.content or not output:
            annotations = annotations_of(said.content, begun.passages) if begun.passages else []
            flat = [{"type": each["type"], **each["url_citation"]} for each in annotations]
            part = text_part(said.content, flat, self.logprobs(completion.logprobs))
            output.insert(0, self.message("completed" if output else status, [part]))
        why = None if is_whole else {"reason": "max_output_tokens"}
        told = {"usage": _usage(ended), "incomplete_details": why, "metrics": metrics_of([ended])}
        return self.body(status, output, **told)


def response_object(response: ResponseAsked, text: TextSoFar) -> dict[str, Any]:
    """The whole response."""
    if text.ended is None or text.begun is None:
        raise RuntimeError("The text has not ended.")
    return response.ended(text.text, text.begun, text.ended)


def text_part(
    text: str, annotations: list[dict[str, Any]] | None = None, logprobs: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": annotations or [], "logprobs": logprobs or []}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    named = {"type": "function_call", "id": f"fc_{uuid4().hex}", "status": "completed"}
    return {**named, "call_id": call["id"], **call["function"]}


def _usage(ended: Finished) -> dict[str, Any]:
    usage, steps = ended.completion.usage, ended.completion.steps
    cached = max(usage.prompt_tokens - steps.prefill_tokens, 0)
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},  # keeping costs nothing here
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def _as_given(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = options.model_dump(by_alias=True, exclude_none=True)
    form = found.setdefault("format", {"type": "text"})
    if form["type"] == "json_schema":
        return found | {"format": {"description": None, "strict": False, **form}}
    return found | {"format": {"type": form["type"]}}
