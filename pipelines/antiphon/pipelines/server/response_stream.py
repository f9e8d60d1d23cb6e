"""A response while it grows, as the events that OpenAI's newer clients read. Decodes nothing."""

from __future__ import annotations

from typing import Any

from antiphon.accel.text.tool_calls import shown
from antiphon.pipelines.server.errors import ApiError, error_body
from antiphon.pipelines.server.jobs import Begun, Finished, Grown
from antiphon.pipelines.server.response_objects import ResponseAsked, text_part


class ResponseStream:
    """A response while it grows: an item is told once it begins, and its message only where something is said."""

    def __init__(self, response: ResponseAsked) -> None:
        self._response = response
        self._number = 0
        self._text = ""
        self._shown = ""
        self._logprobs: list[dict[str, Any]] = []
        self._begun: Begun | None = None
        self._has_message = False

    def begin(self, event: Begun) -> list[dict[str, Any]]:
        """The response is there."""
        self._begun = event
        empty = self._response.body("in_progress", [])
        return [self._event(f"response.{state}", response=empty) for state in ("created", "in_progress")]

    def grow(self, event: Grown) -> list[dict[str, Any]]:
        """More of its text, as far as it is certain to be no call of a tool."""
        self._text += event.text
        self._logprobs += self._response.logprobs(event.logprobs)
        prompt = self._response.chat.prompt
        return self._show(self._text if not prompt.tools else shown(prompt.opening + self._text))

    def finish(self, event: Finished) -> list[dict[str, Any]]:
        """What is left, and the whole."""
        if self._begun is None:
            return []
        whole = self._response.ended(self._text, self._begun, event)
        events = []
        for place, item in enumerate(whole["output"]):
            events += self._said(item) if item["type"] == "message" else self._called(place, item)
        return [*events, self._event(f"response.{whole['status']}", response=whole)]

    def fail(self, error: ApiError) -> list[dict[str, Any]]:
        """What went wrong, and the response that has failed."""
        told = error_body(error.status, str(error), error.param, error.code)["error"]
        why = {"code": "server_error" if error.status >= 500 else "invalid_prompt", "message": told["message"]}
        failed = self._response.body("failed", [], error=why)
        return [
            self._event("error", **told, error=told),
            self._event("response.failed", response=failed),
        ]

    def _open(self) -> list[dict[str, Any]]:
        """The message, once."""
        if self._has_message:
            return []
        self._has_message = True
        message = self._response.message("in_progress", [])
        return [
            self._event("response.output_item.added", output_index=0, item=message),
            self._event("response.content_part.added", **self._place(), part=text_part("")),
        ]

    def _show(self, certain: str) -> list[dict[str, Any]]:
        new, self._shown = certain[len(self._shown) :], certain
        if not new:
            return []
        logprobs, self._logprobs = self._logprobs, []
        delta = {"delta": new, "logprobs": logprobs}
        return [*self._open(), self._event("response.output_text.delta", **self._place(), **delta)]

    def _said(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        [part] = message["content"]
        events = [*self._show(part["text"]), *self._open()]
        for place, annotation in enumerate(part["annotations"]):
            told = {"annotation_index": place, "annotation": annotation}
            events.append(self._event("response.output_text.annotation.added", **self._place(), **told))
        whole = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            *events,
            self._event("response.output_text.done", **self._place(), **whole),
            self._event("response.content_part.done", **self._place(), part=part),
            self._event("response.output_item.done", output_index=0, item=message),
        ]

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
        return {**fields, "type": kind, "sequence_number": self._number - 1}
