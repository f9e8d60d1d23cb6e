"""The endpoint /v1/chat/completions: request, response object and stream of chunks."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from antiphon.accel import Completion
from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.text.messages import Conversation
from antiphon.accel.text.tool_calls import ParsedOutput, ToolCall, parse_tool_calls, visible_text
from antiphon.pipelines.prompt import is_refusal
from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.errors import ERRORS, unsupported_parameter
from antiphon.pipelines.server.request_conversion import (
    Schema,
    chat_prompt,
    predicted_texts,
    reference_passages,
    sampling_parameters,
)
from antiphon.pipelines.server.request_queue import CollectedText, Delta, Event, Finished, Started
from antiphon.pipelines.server.request_schemas import ChatRequest, SamplingRequest
from antiphon.pipelines.server.response_fields import (
    LogprobReader,
    TextToken,
    annotation_object,
    annotation_objects,
    chat_logprobs,
    metrics_object,
    passage_object,
    reasoning_field,
    usage_counts,
    usage_object,
)
from antiphon.pipelines.server.service import ServedModel, Service, access_of, service_of
from antiphon.pipelines.server.streaming import DONE, collect, merge_events, run_in_thread, sse_event, stream
from antiphon.pipelines.server.text_segments import SegmentTracker
from antiphon.retrieval.document import LONE_SURROGATE

FINISH_REASONS: dict[FinishReason, str] = {"stop": "stop", "length": "length", "cancelled": "stop"}
"""For each of Antiphon's finish reasons, the finish reason in OpenAI's protocol."""

router = APIRouter(responses=ERRORS)


@router.post("/v1/chat/completions", tags=["OpenAI"])
async def chat_completions(
    body: ChatRequest, request: Request, access: Annotated[Access, Depends(access_of)]
) -> Response:
    """Answer a conversation. If ``stream`` is set, the answer is sent as server-sent events."""
    service = service_of(request)
    body.check_supported()
    served = service.model(body.model, access, body.collection)
    chat = ChatResponse(body, served, *await run_in_thread(chat_prompt, body, served.language_model.tokenizer))
    starts = [start_choice(service, chat, index) for index in range(num_choices(service, body))]
    jobs = service.submit(starts, served, access.key, body.user)
    if body.stream:
        return await stream(request, _stream_lines(chat, merge_events(jobs)), jobs)
    texts = await collect(request, jobs)
    choices = [_choice_object(chat, index, text) for index, text in enumerate(texts)]
    return JSONResponse(
        chat.to_object(choices, kind="chat.completion", **chat.totals([text.finished for text in texts]))
    )


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """Makes the response to a chat request: one object, or the chunks of a stream.

    Attributes:
        conversation: the prompt.
        tools: the tools that the model may call: for each name, the schema of the arguments.
    """

    body: ChatRequest
    served: ServedModel
    conversation: Conversation
    tools: Mapping[str, Any]
    json_schema: Schema
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def parse(self, text: str) -> ParsedOutput:
        """Split generated text into content and tool calls."""
        if not self.tools:
            return ParsedOutput(text)
        output = parse_tool_calls(self.conversation.assistant_prefix + text, self.tools)
        return output.first_call_only() if self.body.parallel_tool_calls is False else output

    def finish_reason(self, text: str, completion: Completion) -> FinishReason:
        """Return why a text ended: "stop" instead of "length" if the text is complete JSON of the requested schema."""
        if completion.finish_reason != "length" or self.json_schema is None:
            return completion.finish_reason
        try:
            json.loads(text)
        except ValueError:
            return "length"
        return "stop"

    def visible_text(self, text: str, sent: str) -> str:
        """Return the beginning of a streamed text that is certainly content and not part of a tool call."""
        if not self.tools:
            return text
        return visible_text(self.conversation.assistant_prefix + text, self.tools, len(sent))

    def to_object(
        self, choices: list[dict[str, Any]], *, kind: str = "chat.completion.chunk", **fields: Any
    ) -> dict[str, Any]:
        """Return a chunk of the stream, or another object with choices."""
        named = {"id": self.id, "object": kind, "created": self.created, "model": self.served.id}
        return {**named, "choices": choices, **fields}

    def totals(self, finished: Sequence[Finished]) -> dict[str, Any]:
        """Return the fields with the cost of all choices."""
        usage = usage_object(finished, is_predicted=self.body.prediction is not None)
        return {"usage": usage, "metrics": metrics_object(finished)}


def num_choices(service: Service, body: SamplingRequest) -> int:
    """Return the number of choices ``n``.

    Raises:
        ApiError: ``n`` exceeds the limit.
    """
    n, limit = body.n or 1, service.settings.max_choices
    if n > limit:
        raise unsupported_parameter("n", f"n is {n}; the limit of this server is {limit}.")
    return n


def start_choice(service: Service, chat: ChatResponse, index: int) -> Callable[..., Started]:
    """Return the function that starts the generation of one choice of a chat.

    Raises:
        ApiError: two fields contradict each other, or a field is out of range.
    """
    body = chat.body
    parameters = sampling_parameters(body, index) | {
        "max_new_tokens": service.max_new_tokens(body, chat.served),
        "json_schema": chat.json_schema,
    }
    if body.max_thinking_tokens is not None:
        parameters["max_thinking_tokens"] = min(body.max_thinking_tokens, service.settings.max_output_tokens)
    if body.logprobs:
        parameters["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise unsupported_parameter("top_logprobs", "top_logprobs needs logprobs: true.")
    return partial(
        service.start,
        chat.served,
        chat.conversation,
        parameters,
        references=reference_passages(body.references),
        predicted=predicted_texts(body),
        where=body.where,
        with_quote=bool(index == 0 and body.stream and body.stream_options and body.stream_options.include_segments),
    )


def _choice_object(chat: ChatResponse, index: int, text: CollectedText) -> dict[str, Any]:
    output = chat.parse(text.text)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": output.content or (None if output.calls else ""),
        "refusal": None,
        **reasoning_field(text.reasoning),
    }
    if output.calls:
        message["tool_calls"] = tool_call_objects(output)
    if text.started.passages:
        message["annotations"] = annotation_objects(output.content, text.started)
    return {
        "index": index,
        "message": message,
        "finish_reason": _finish_reason(chat, output, text.finished),
        "logprobs": _logprobs(chat, text),
        **({"token_ids": text.tokens} if chat.body.return_token_ids else {}),
        **notices(chat, text.finished),
    }


def _quote_field(started: Started) -> dict[str, Any]:
    """Return the field ``quote``, the best quote of the passages; empty if no quote was found before the first text."""
    search = started.quote
    if search is None or search.cancel() or not search.done() or (quote := search.result()) is None:
        return {}
    return {"quote": annotation_object(quote, started.passages)}


def _logprobs(chat: ChatResponse, text: CollectedText) -> dict[str, Any] | None:
    if not chat.body.logprobs:
        return None
    reader = LogprobReader(chat.served.language_model.tokenizer)
    return chat_logprobs(reader.read(text.finished.completion), reader.bytes_of)


def notices(chat: ChatResponse, finished: Finished) -> dict[str, Any]:
    """Return the field that says why there is no answer: the output ended in the thinking, or it is a refusal."""
    if finished.completion.ended_in_thinking:
        return {"ended_in_thinking": True}
    is_refused = chat.served.rag is not None and is_refusal(finished.completion.text)
    return {"refused": True} if is_refused else {}


def _finish_reason(chat: ChatResponse, output: ParsedOutput, finished: Finished) -> str:
    if output.calls:
        return "tool_calls"
    return FINISH_REASONS[chat.finish_reason(output.content, finished.completion)]


def tool_call_objects(output: ParsedOutput) -> list[dict[str, Any]]:
    """Return the tool calls of an answer."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments_text(call)}}
        for call in output.calls
    ]


def _arguments_text(call: ToolCall) -> str:
    """Return the arguments as JSON; escaped if they contain unpaired surrogates, which UTF-8 cannot encode."""
    text = json.dumps(dict(call.arguments), ensure_ascii=False)
    return json.dumps(dict(call.arguments)) if LONE_SURROGATE.search(text) else text


async def _stream_lines(chat: ChatResponse, events: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[str]:
    """Yield the stream: role, text and finish reason of each choice; then usage, metrics and the end mark."""
    choices: dict[int, _ChoiceStream] = {}
    async for index, event in events:
        choice = choices.setdefault(index, _ChoiceStream(chat, index))
        for chunk in choice.push(event):
            yield sse_event(chunk)
    options = chat.body.stream_options
    if options is not None and (options.include_usage or options.continuous_usage_stats):
        yield sse_event(chat.to_object([], **chat.totals([choice.finished for choice in choices.values()])))
    yield DONE


class _ChoiceStream:
    """Converts the events of one choice to chunks."""

    def __init__(self, chat: ChatResponse, index: int) -> None:
        self._chat = chat
        self._index = index
        self._text = ""
        self._sent = ""  # the content that has been sent so far
        self._prompt_tokens = 0
        self._num_tokens = self._num_reasoning = 0
        self._started: Started
        self._segments: SegmentTracker | None = None
        self._logprobs = LogprobReader(chat.served.language_model.tokenizer)
        self.finished: Finished

    def push(self, event: Event) -> list[dict[str, Any]]:
        """Return the chunks of an event."""
        match event:
            case Started():
                self._started, self._prompt_tokens = event, event.stream.prompt_tokens
                fields: dict[str, Any] = {}
                options = self._chat.body.stream_options
                if options is not None and options.include_segments:
                    self._segments = SegmentTracker(event.passages, has_prefix=bool(event.plan.response_prefix))
                    fields = {"passages": list(map(passage_object, event.passages)), **_quote_field(event)}
                return [self._chunk({"role": "assistant", "content": ""}, **fields)]
            case Delta():
                return self._push_delta(event)
            case Finished():
                self.finished = event
                return [self._last_chunk(event)]

    def _push_delta(self, event: Delta) -> list[dict[str, Any]]:
        chat, body = self._chat, self._chat.body
        self._text += event.text
        self._num_tokens, self._num_reasoning = event.num_tokens, event.reasoning_tokens
        visible = chat.visible_text(self._text, self._sent)
        content, self._sent = visible[len(self._sent) :], visible
        choice: dict[str, Any] = {}
        if body.return_token_ids:
            choice["token_ids"] = list(event.tokens)
        choice |= self._logprobs_field(self._logprobs.push(event))
        fields: dict[str, Any] = {}
        if self._segments is not None:
            fields["segments"] = self._segments.push(event.text, event.origins)
        if not content and not event.reasoning and not choice and not any(fields.values()):
            return []
        delta = reasoning_field(event.reasoning) or {"content": content}
        return [self._chunk(delta, choice=choice, **fields)]

    def _last_chunk(self, event: Finished) -> dict[str, Any]:
        output = self._chat.parse(self._text)
        delta: dict[str, Any] = {}
        if rest := output.content[len(self._sent) :]:
            delta["content"] = rest
        if output.calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(tool_call_objects(output))]
        if self._started.passages:
            delta["annotations"] = annotation_objects(output.content, self._started)
        choice = notices(self._chat, event) | self._logprobs_field(self._logprobs.finish(event.completion))
        return self._chunk(delta, finish_reason=_finish_reason(self._chat, output, event), choice=choice)

    def _logprobs_field(self, tokens: list[TextToken]) -> dict[str, Any]:
        if not tokens or not self._chat.body.logprobs:
            return {}
        return {"logprobs": chat_logprobs(tokens, self._logprobs.bytes_of)}

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        choice: dict[str, Any] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        options = self._chat.body.stream_options
        if options is not None and options.continuous_usage_stats:
            fields["usage"] = usage_counts(self._prompt_tokens, self._num_tokens, self._num_reasoning)
        common = {"index": self._index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return self._chat.to_object([{**common, **(choice or {})}], **fields)
