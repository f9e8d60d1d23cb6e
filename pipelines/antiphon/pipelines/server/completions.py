"""The endpoint /v1/completions: continues texts without a chat template."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.chat_completions import FINISH_REASONS, num_choices
from antiphon.pipelines.server.errors import ERRORS, unsupported_parameter
from antiphon.pipelines.server.request_conversion import (
    completion_prompts,
    predicted_texts,
    reference_passages,
    sampling_parameters,
)
from antiphon.pipelines.server.request_queue import CollectedText, Delta, Event, Finished, Started
from antiphon.pipelines.server.request_schemas import CompletionRequest
from antiphon.pipelines.server.response_fields import (
    LogprobReader,
    TextToken,
    completion_logprobs,
    metrics_object,
    usage_counts,
    usage_object,
)
from antiphon.pipelines.server.service import ServedModel, Service, access_of, service_of
from antiphon.pipelines.server.streaming import DONE, collect, merge_events, run_in_thread, sse_event, stream

router = APIRouter(responses=ERRORS)


@router.post("/v1/completions", tags=["OpenAI"])
async def text_completions(
    body: CompletionRequest, request: Request, access: Annotated[Access, Depends(access_of)]
) -> Response:
    """Continue texts. If ``stream`` is set, the texts are sent as server-sent events."""
    service = service_of(request)
    body.check_supported()
    served = service.model(body.model, access, body.collection)
    if served.rag is not None:
        message = f"The model {served.id!r} answers questions; use /v1/chat/completions."
        raise unsupported_parameter("model", message)
    if body.echo and body.logprobs is not None:
        raise unsupported_parameter("echo", "echo with logprobs is not supported: prompts have no log-probabilities.")
    prompts = await run_in_thread(completion_prompts, body, served.language_model.tokenizer)
    completion = CompletionResponse(body, served, prompts)
    jobs = service.submit(_starts(service, completion), served, access.key, body.user)
    if body.stream:
        return await stream(request, _stream_lines(completion, merge_events(jobs)), jobs)
    return JSONResponse(_completion_object(completion, await collect(request, jobs)))


@dataclass(frozen=True, slots=True)
class CompletionResponse:
    """Makes the response to a completion request: one object, or the chunks of a stream."""

    body: CompletionRequest
    served: ServedModel
    prompts: Sequence[PromptInput]
    id: str = field(default_factory=lambda: f"cmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def echoed(self, index: int) -> str:
        """Return the prompt of a choice if the request sets ``echo``, else an empty text."""
        prompt = self.prompts[index // (self.body.n or 1)]
        return prompt if self.body.echo and isinstance(prompt, str) else ""

    def to_object(self, choices: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """Return the response or a chunk of the stream; both have the same fields."""
        named = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.served.id}
        return {**named, "choices": choices, **fields}


def _starts(service: Service, completion: CompletionResponse) -> list[Callable[..., Started]]:
    """Return the functions that start the generations, ``n`` for each prompt."""
    body, limit = completion.body, service.settings.max_choices
    n = num_choices(service, body)
    total = n * len(completion.prompts)
    if total > limit:
        raise unsupported_parameter(
            "prompt", f"The request asks for {total} texts; the limit of this server is {limit}."
        )
    schema = body.response_format.required_schema if body.response_format else None
    references, predicted = reference_passages(body.references), predicted_texts(body)
    length = service.max_new_tokens(body, completion.served)
    own = {"max_new_tokens": length, "logprobs": body.logprobs, "json_schema": schema}
    return [
        partial(
            service.start,
            completion.served,
            prompt,
            sampling_parameters(body, index) | own,
            references=references,
            predicted=predicted,
            where=body.where,
        )
        for prompt in completion.prompts
        for index in range(n)
    ]


def _completion_object(completion: CompletionResponse, texts: Sequence[CollectedText]) -> dict[str, Any]:
    finished = [text.finished for text in texts]
    choices = [_choice_object(completion, index, text) for index, text in enumerate(texts)]
    return completion.to_object(choices, usage=_usage(completion, finished), metrics=metrics_object(finished))


def _usage(completion: CompletionResponse, finished: Sequence[Finished]) -> dict[str, Any]:
    """Return the usage; each prompt counts once, however many choices it has."""
    usage = usage_object(finished, is_predicted=completion.body.prediction is not None)
    prompt = sum(each.completion.usage.prompt_tokens for each in finished[:: completion.body.n or 1])
    return usage | usage_counts(prompt, usage["completion_tokens"])


def _choice_object(completion: CompletionResponse, index: int, text: CollectedText) -> dict[str, Any]:
    body, finished = completion.body, text.finished
    reader = LogprobReader(completion.served.language_model.tokenizer)
    return {
        "index": index,
        "text": completion.echoed(index) + text.text,
        "finish_reason": FINISH_REASONS[finished.completion.finish_reason],
        "logprobs": _logprobs(completion, reader, reader.read(finished.completion)),
        **({"token_ids": text.tokens} if body.return_token_ids else {}),
    }


async def _stream_lines(completion: CompletionResponse, events: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[str]:
    """Yield a chunk for each event; then usage, metrics and the end mark."""
    finished: dict[int, Finished] = {}
    num_tokens: dict[int, int] = {}
    prompt_tokens: dict[int, int] = {}
    readers: dict[int, LogprobReader] = {}
    options = completion.body.stream_options
    async for index, event in events:
        choice: dict[str, Any] = {"index": index, "text": "", "finish_reason": None, "logprobs": None}
        match event:
            case Started():
                prompt_tokens[index] = event.stream.prompt_tokens
                readers[index] = LogprobReader(completion.served.language_model.tokenizer)
                choice["text"] = completion.echoed(index)
            case Delta():
                num_tokens[index] = event.num_tokens
                choice["text"] = event.text
                if completion.body.return_token_ids:
                    choice["token_ids"] = list(event.tokens)
                choice["logprobs"] = _logprobs(completion, readers[index], readers[index].push(event))
            case Finished():
                finished[index] = event
                choice["finish_reason"] = FINISH_REASONS[event.completion.finish_reason]
                choice["logprobs"] = _logprobs(completion, readers[index], readers[index].finish(event.completion))
        fields = {}
        if options is not None and options.continuous_usage_stats:
            fields["usage"] = usage_counts(prompt_tokens.get(index, 0), num_tokens.get(index, 0))
        yield sse_event(completion.to_object([choice], **fields))
    if options is not None and (options.include_usage or options.continuous_usage_stats):
        ordered = [finished[index] for index in sorted(finished)]
        usage, metrics = _usage(completion, ordered), metrics_object(ordered)
        yield sse_event(completion.to_object([], usage=usage, metrics=metrics))
    yield DONE


def _logprobs(
    completion: CompletionResponse, reader: LogprobReader, tokens: Sequence[TextToken]
) -> dict[str, Any] | None:
    if completion.body.logprobs is None or not tokens:
        return None
    return completion_logprobs(tokens, reader.bytes_of)
