"""The endpoint /v1/responses, OpenAI's newer protocol: response object and stream of named events.

A request is converted to a chat request (`responses_schema`). The server stores no responses.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.chat_completions import ChatResponse, notices, start_choice, tool_call_objects
from antiphon.pipelines.server.errors import ERRORS, ApiError, error_body, to_api_error
from antiphon.pipelines.server.request_conversion import chat_prompt
from antiphon.pipelines.server.request_queue import Delta, Event, Finished, Started
from antiphon.pipelines.server.response_fields import (
    LogprobReader,
    TextToken,
    annotation_objects,
    chat_logprobs,
    metrics_object,
)
from antiphon.pipelines.server.responses_schema import ResponseRequest, to_chat_request
from antiphon.pipelines.server.service import access_of, service_of
from antiphon.pipelines.server.streaming import DONE, collect, merge_events, run_in_thread, sse_event, stream

router = APIRouter(responses=ERRORS)


@router.post("/v1/responses", tags=["OpenAI"])
async def create_response(
    body: ResponseRequest, request: Request, access: Annotated[Access, Depends(access_of)]
) -> Response:
    """Answer an input. If ``stream`` is set, the answer is sent as named server-sent events."""
    service = service_of(request)
    chat_body = to_chat_request(body)
    chat_body.check_supported()
    served = service.model(body.model, access, body.collection)
    prompt = await run_in_thread(chat_prompt, chat_body, served.language_model.tokenizer)
    response = ResponseObject(body, ChatResponse(chat_body, served, *prompt))
    jobs = service.submit([start_choice(service, response.chat, 0)], served, access.key, body.user)
    if body.stream:
        return await stream(request, _stream_lines(response, merge_events(jobs)), jobs)
    [text] = await collect(request, jobs)
    return JSONResponse(response.finished_object(text.text, text.started, text.finished))


@dataclass(frozen=True, slots=True)
class ResponseObject:
    """Makes the response object and its items; ``chat`` is the equivalent chat response."""

    body: ResponseRequest
    chat: ChatResponse
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    message_id: str = field(default_factory=lambda: f"msg_{uuid4().hex}")
    reasoning_id: str = field(default_factory=lambda: f"rs_{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def to_object(self, status: str, output: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """Return the response object.

        Args:
            status: "in_progress", "completed", "incomplete" or "failed".
        """
        body, choice = self.body, self.body.tool_choice
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
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": None if body.reasoning is None else {**body.reasoning.model_dump(), "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
            "background": False,
            "temperature": body.temperature or 0.0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "presence_penalty": self.chat.body.presence_penalty or 0.0,
            "frequency_penalty": self.chat.body.frequency_penalty or 0.0,
            "top_logprobs": body.top_logprobs or 0,
            "text": {"format": {"type": "text"}} if body.text is None else _text_options(body.text),
            "tool_choice": choice or "auto" if isinstance(choice, str | None) else choice.model_dump(),
            "tools": [{"strict": False, **tool.model_dump()} for tool in body.tools or ()],
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
            **fields,
        }

    def message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the message item."""
        named = {"type": "message", "id": self.message_id, "role": "assistant", "status": status}
        return {**named, "content": content}

    def reasoning_item(self, status: str, text: str) -> dict[str, Any]:
        """Return the item of the model's thinking."""
        content = [{"type": "reasoning_text", "text": text}] if text else []
        return {"type": "reasoning", "id": self.reasoning_id, "status": status, "summary": [], "content": content}

    def logprobs(self, reader: LogprobReader, tokens: Sequence[TextToken]) -> list[dict[str, Any]]:
        """Return the logprobs as JSON, or an empty list if the request does not include them."""
        if not self.chat.body.logprobs:
            return []
        entries: list[dict[str, Any]] = chat_logprobs(tokens, reader.bytes_of)["content"]
        return entries

    def finished_object(self, text: str, started: Started, finished: Finished) -> dict[str, Any]:
        """Return the complete response: message and tool calls. If there are only tool calls, there is no message."""
        output, completion = self.chat.parse(text), finished.completion
        is_complete = self.chat.finish_reason(output.content, completion) == "stop"
        status = "completed" if is_complete else "incomplete"
        items = [_function_call(call) for call in tool_call_objects(output)]
        if output.content or not items:
            annotations = annotation_objects(output.content, started)
            flat = [{"type": each["type"], **each["url_citation"]} for each in annotations]
            reader = LogprobReader(self.chat.served.language_model.tokenizer)
            logprobs = self.logprobs(reader, reader.read(completion))
            part = _text_part(output.content, flat, logprobs)
            items.insert(0, self.message("completed" if items else status, [part]))
        if completion.reasoning:
            items.insert(0, self.reasoning_item("completed", completion.reasoning))
        return self.to_object(
            status,
            items,
            usage=_usage(finished),
            incomplete_details=None if is_complete else {"reason": "max_output_tokens"},
            metrics=metrics_object([finished]),
            **notices(self.chat, finished),
        )


def _text_part(
    text: str, annotations: list[dict[str, Any]] | None = None, logprobs: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations or [], "logprobs": logprobs or []}


def _function_call(call: Mapping[str, Any]) -> dict[str, Any]:
    named = {"type": "function_call", "id": f"fc_{uuid4().hex}", "status": "completed"}
    return {**named, "call_id": call["id"], **call["function"]}


def _usage(finished: Finished) -> dict[str, Any]:
    usage, cached = finished.completion.usage, finished.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},  # cache writes are not billed here
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _text_options(options: Any) -> dict[str, Any]:
    """Return the request's text options, with defaults for fields that clients require."""
    found: dict[str, Any] = options.model_dump(by_alias=True, exclude_none=True)
    text_format = found.setdefault("format", {"type": "text"})
    if text_format["type"] == "json_schema":
        return found | {"format": {"description": None, "strict": False, **text_format}}
    return found | {"format": {"type": text_format["type"]}}


async def _stream_lines(response: ResponseObject, events: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[str]:
    """Yield the stream; an error after the first event becomes an error event and a failed response."""
    response_stream, has_started = _ResponseStream(response), False
    try:
        async for _, event in events:
            for body in response_stream.push(event):
                yield sse_event(body, body["type"])
            has_started = True
    except Exception as error:
        if not has_started:
            raise
        for body in response_stream.fail(to_api_error(error)):
            yield sse_event(body, body["type"])
    yield DONE


class _ResponseStream:
    """Converts the events of a generation to events of the Responses API.

    An item is added when it starts. The message item is added only if there is content.
    """

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._sequence_number = 0
        self._text = ""
        self._sent = ""  # the content that has been sent so far
        self._logprobs: list[dict[str, Any]] = []
        self._tokens = LogprobReader(response.chat.served.language_model.tokenizer)
        self._started: Started
        self._has_message = False
        self._reasoning = ""
        self._has_finished_reasoning = False

    def push(self, event: Event) -> list[dict[str, Any]]:
        """Return the API's events for an event of the generation."""
        match event:
            case Started():
                self._started = event
                empty = self._response.to_object("in_progress", [])
                return [self._event(f"response.{state}", response=empty) for state in ("created", "in_progress")]
            case Delta():
                self._text += event.text
                self._logprobs += self._response.logprobs(self._tokens, self._tokens.push(event))
                return [
                    *self._send_reasoning(event.reasoning),
                    *self._send_text(self._response.chat.visible_text(self._text, self._sent)),
                ]
            case Finished():
                return self._finish(event)

    def fail(self, error: ApiError) -> list[dict[str, Any]]:
        """Return an error event and the failed response."""
        detail = error_body(error)["error"]
        reason = {"code": "server_error" if error.status >= 500 else "invalid_prompt", "message": detail["message"]}
        failed = self._response.to_object("failed", [], error=reason)
        return [self._event("error", **detail, error=detail), self._event("response.failed", response=failed)]

    def _finish(self, event: Finished) -> list[dict[str, Any]]:
        response = self._response.finished_object(self._text, self._started, event)
        self._logprobs += self._response.logprobs(self._tokens, self._tokens.finish(event.completion))
        events = []
        for index, item in enumerate(response["output"]):
            if item["type"] == "reasoning":
                events += self._finish_reasoning()
            else:
                events += self._finish_message(item) if item["type"] == "message" else self._send_call(index, item)
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def _send_reasoning(self, new: str) -> list[dict[str, Any]]:
        """Return the events for new text of the thinking. The thinking is the first item."""
        if not new:
            return []
        item = self._response.reasoning_item("in_progress", "")
        started = [] if self._reasoning else [self._event("response.output_item.added", output_index=0, item=item)]
        self._reasoning += new
        location = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        return [*started, self._event("response.reasoning_text.delta", **location, delta=new)]

    def _finish_reasoning(self) -> list[dict[str, Any]]:
        """Return the events that end the item of the thinking; none after the first call."""
        if not self._reasoning or self._has_finished_reasoning:
            return []
        self._has_finished_reasoning = True
        item = self._response.reasoning_item("completed", self._reasoning)
        location = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        return [
            self._event("response.reasoning_text.done", **location, text=item["content"][0]["text"]),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def _start_message(self) -> list[dict[str, Any]]:
        """Return the events that add the message item; none after the first call."""
        if self._has_message:
            return []
        self._has_message = True
        message = self._response.message("in_progress", [])
        return [
            *self._finish_reasoning(),
            self._event("response.output_item.added", output_index=self._location()["output_index"], item=message),
            self._event("response.content_part.added", **self._location(), part=_text_part("")),
        ]

    def _send_text(self, visible: str) -> list[dict[str, Any]]:
        new, self._sent = visible[len(self._sent) :], visible
        if not new:
            return []
        logprobs, self._logprobs = self._logprobs, []
        delta = {"delta": new, "logprobs": logprobs}
        return [*self._start_message(), self._event("response.output_text.delta", **self._location(), **delta)]

    def _finish_message(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        [part] = message["content"]
        events = [*self._send_text(part["text"]), *self._start_message()]
        for index, annotation in enumerate(part["annotations"]):
            fields = {"annotation_index": index, "annotation": annotation}
            events.append(self._event("response.output_text.annotation.added", **self._location(), **fields))
        text = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            *events,
            self._event("response.output_text.done", **self._location(), **text),
            self._event("response.content_part.done", **self._location(), part=part),
            self._event("response.output_item.done", output_index=self._location()["output_index"], item=message),
        ]

    def _send_call(self, index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
        location = {"output_index": index, "item_id": item["id"]}
        started = {**item, "arguments": "", "status": "in_progress"}
        arguments = item["arguments"]
        return [
            self._event("response.output_item.added", output_index=index, item=started),
            self._event("response.function_call_arguments.delta", **location, delta=arguments),
            self._event("response.function_call_arguments.done", **location, name=item["name"], arguments=arguments),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _location(self) -> dict[str, Any]:
        index = 1 if self._reasoning else 0
        return {"item_id": self._response.message_id, "output_index": index, "content_index": 0}

    def _event(self, event_type: str, **fields: Any) -> dict[str, Any]:
        self._sequence_number += 1
        return {**fields, "type": event_type, "sequence_number": self._sequence_number - 1}
