"""/v1/completions: texts in, what follows them out. Knows no conversations."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines.server.chat import ERRORS, choices_of, predicted_texts, wanted_parameters
from antiphon.pipelines.server.chat_objects import FINISHES
from antiphon.pipelines.server.errors import refused_error
from antiphon.pipelines.server.figures import metrics_of, text_logprobs, usage_of, whole_usage
from antiphon.pipelines.server.jobs import Begun, Event, Finished, Grown, TextSoFar
from antiphon.pipelines.server.prompts import cited_passages, completion_prompts
from antiphon.pipelines.server.requests import CompletionRequest
from antiphon.pipelines.server.served import ServedModel, TextWanted
from antiphon.pipelines.server.service import Service, key_of, service_of
from antiphon.pipelines.server.streaming import DONE, event_line, merged, prepared, read_all, streamed, unless_gone

router = APIRouter(responses=ERRORS)


@dataclass(frozen=True, slots=True)
class CompletionAsked:
    """A request, and who answers it."""

    request: CompletionRequest
    served: ServedModel
    prompts: Sequence[PromptInput]
    id: str = field(default_factory=lambda: f"cmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The answer, or a chunk of it: both look alike."""
        named = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.served.id}
        return {**named, "choices": choices, **more}


@router.post("/v1/completions", tags=["OpenAI"])
async def text_completions(
    asked: CompletionRequest, request: Request, key: Annotated[str, Depends(key_of)]
) -> Response:
    """Continue texts; with ``stream`` as server-sent events."""
    service = service_of(request)
    asked.check_offered()
    served = service.model(asked.model)
    if served.rag is not None:
        raise refused_error("model", f"The model {served.id!r} answers questions; ask by /v1/chat/completions.")
    tokenizer = served.language_model.tokenizer
    prompts = await prepared(completion_prompts, asked, tokenizer)
    completion = CompletionAsked(asked, served, prompts)
    jobs = service.submit(_wanted_texts(service, completion), served, key, asked.user)
    if asked.stream:
        return await streamed(request, _lines(completion, merged(jobs)), jobs)
    texts = [TextSoFar(job) for job in jobs]
    await unless_gone(request, read_all(texts), jobs)
    return JSONResponse(_whole(completion, texts))


def _wanted_texts(service: Service, completion: CompletionAsked) -> list[TextWanted]:
    asked = completion.request
    count = choices_of(service, asked)
    if count * len(completion.prompts) > service.settings.max_choices:
        most = service.settings.max_choices
        raise refused_error(
            "prompt", f"{count * len(completion.prompts)} texts are asked for; this server gives {most}."
        )
    schema = asked.response_format.wanted if asked.response_format else None
    passages, predicted = cited_passages(asked.references or ()), predicted_texts(asked)
    return [
        TextWanted(prompt, {**parameters, "logprobs": asked.logprobs, "json_schema": schema}, passages, predicted)
        for prompt in completion.prompts
        for place in range(count)
        for parameters in [wanted_parameters(service, asked, completion.served, place)]
    ]


def _whole(completion: CompletionAsked, texts: Sequence[TextSoFar]) -> dict[str, Any]:
    ended = [text.ended for text in texts if text.ended is not None]
    usage = _usage(completion, ended)
    choices = [_choice(completion, place, text) for place, text in enumerate(texts)]
    return completion.body(choices, usage=usage, metrics=metrics_of(ended))


def _usage(completion: CompletionAsked, ended: Sequence[Finished]) -> dict[str, Any]:
    """Each prompt counts once, however many choices it has."""
    usage = whole_usage(ended, is_predicted=completion.request.prediction is not None)
    prompt = sum(each.completion.usage.prompt_tokens for each in ended[:: completion.request.n or 1])
    return usage | usage_of(prompt, usage["completion_tokens"])


def _choice(completion: CompletionAsked, place: int, text: TextSoFar) -> dict[str, Any]:
    asked, tokenizer = completion.request, completion.served.language_model.tokenizer
    ended = text.ended
    logprobs = None
    if asked.logprobs is not None and ended is not None:
        logprobs = text_logprobs(ended.completion.logprobs, tokenizer, 0)
    return {
        "index": place,
        "text": text.text,
        "finish_reason": FINISHES[ended.completion.finish_reason] if ended else None,
        "logprobs": logprobs,
        **({"token_ids": text.tokens} if asked.return_token_ids else {}),
    }


async def _lines(completion: CompletionAsked, events: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[str]:
    asked = completion.request
    ended: dict[int, Finished] = {}
    written: dict[int, int] = {}
    prompts: dict[int, int] = {}
    options = asked.stream_options
    async for place, event in events:
        choice: dict[str, Any] = {"index": place, "text": "", "finish_reason": None, "logprobs": None}
        match event:
            case Begun():
                prompts[place] = event.stream.prompt_tokens
            case Grown():
                written[place] = event.written
                choice |= _grown_choice(completion, event)
            case Finished():
                ended[place] = event
                choice["finish_reason"] = FINISHES[event.completion.finish_reason]
        usage = {}
        if options is not None and options.continuous_usage_stats:
            usage = {"usage": usage_of(prompts.get(place, 0), written.get(place, 0))}
        yield event_line(completion.body([choice], **usage))
    if options is not None and (options.include_usage or options.continuous_usage_stats):
        told = [ended[place] for place in sorted(ended)]
        yield event_line(completion.body([], usage=_usage(completion, told), metrics=metrics_of(told)))
    yield DONE


def _grown_choice(completion: CompletionAsked, event: Grown) -> dict[str, Any]:
    asked = completion.request
    choice: dict[str, Any] = {"text": event.text}
    if asked.return_token_ids:
        choice["token_ids"] = list(event.tokens)
    if asked.logprobs is not None:
        choice["logprobs"] = text_logprobs(event.logprobs, completion.served.language_model.tokenizer, 0)
    return choice
