"""/v1/chat/completions: a conversation in, its next turn out, whole or as it grows. Knows no HTTP but its endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from antiphon.pipelines.server.chat_objects import ChatAsked, ChoiceStream, whole_chat
from antiphon.pipelines.server.errors import ErrorBody, refused_error
from antiphon.pipelines.server.figures import metrics_of, whole_usage
from antiphon.pipelines.server.jobs import Event, TextSoFar
from antiphon.pipelines.server.prompts import chat_prompt_of, cited_passages, joined_text, sampling_parameters
from antiphon.pipelines.server.requests import ChatRequest, SamplingRequest
from antiphon.pipelines.server.served import ServedModel, TextWanted
from antiphon.pipelines.server.service import Service, key_of, service_of
from antiphon.pipelines.server.streaming import DONE, event_line, merged, prepared, read_all, streamed, unless_gone

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 403, 404, 408, 413, 429, 500, 501, 503)
}

router = APIRouter(responses=ERRORS)


@router.post("/v1/chat/completions", tags=["OpenAI"])
async def chat_completions(asked: ChatRequest, request: Request, key: Annotated[str, Depends(key_of)]) -> Response:
    """Answer a conversation; with ``stream`` as server-sent events."""
    service = service_of(request)
    asked.check_offered()
    served = service.model(asked.model)
    prompt = await prepared(chat_prompt_of, asked, served.language_model.tokenizer)
    chat = ChatAsked(asked, served, prompt)
    wanted = [chat_text(service, chat, place) for place in range(choices_of(service, asked))]
    jobs = service.submit(wanted, served, key, asked.user)
    if asked.stream:
        return await streamed(request, _lines(chat, merged(jobs)), jobs)
    texts = [TextSoFar(job) for job in jobs]
    await unless_gone(request, read_all(texts), jobs)
    return JSONResponse(whole_chat(chat, texts))


def choices_of(service: Service, asked: SamplingRequest) -> int:
    """How many texts are asked for.

    Raises:
        ApiError: more than this server gives at once.
    """
    count, most = asked.n or 1, service.settings.max_choices
    if count > most:
        raise refused_error("n", f"n is {count}; this server gives {most} choices at most.")
    return count


def wanted_parameters(service: Service, asked: SamplingRequest, served: ServedModel, place: int) -> dict[str, Any]:
    """How choice number ``place`` is decoded: each has a seed of its own, counted up from the request's."""
    parameters = sampling_parameters(asked)
    if parameters.get("seed") is not None:
        parameters["seed"] = (parameters["seed"] + place) % 2**63 if parameters["seed"] >= 0 else parameters["seed"]
    return {**parameters, "max_new_tokens": service.tokens_of(asked, served)}


def predicted_texts(asked: SamplingRequest) -> tuple[str, ...]:
    """What the client expects the answer to say."""
    if asked.prediction is None:
        return ()
    text = joined_text(asked.prediction.content, "prediction.content")
    return (text,) if text else ()


def chat_text(service: Service, chat: ChatAsked, place: int) -> TextWanted:
    """Choice number ``place`` of a chat, to be decoded.

    Raises:
        ApiError: two wishes do not go together, or are out of range.
    """
    asked = chat.request
    parameters = wanted_parameters(service, asked, chat.served, place) | chat.prompt.parameters
    if asked.logprobs:
        parameters["logprobs"] = asked.top_logprobs or 0
    elif asked.top_logprobs:
        raise refused_error("top_logprobs", "top_logprobs are told with logprobs alone; ask for logprobs: true too.")
    passages = cited_passages(asked.references or ())
    return TextWanted(chat.prompt.content, parameters, passages, predicted_texts(asked))


async def _lines(chat: ChatAsked, events: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[str]:
    """The stream: a first delta with the role, the text, a last one with the reason, usage, and the end."""
    choices: dict[int, ChoiceStream] = {}
    async for place, event in events:
        choice = choices.setdefault(place, ChoiceStream(chat, place))
        for body in choice.push(event):
            yield event_line(body)
    ended = [choice.ended for choice in choices.values() if choice.ended is not None]
    options = chat.request.stream_options
    if options is not None and (options.include_usage or options.continuous_usage_stats):
        usage = whole_usage(ended, is_predicted=chat.request.prediction is not None)
        yield event_line(chat.chunk([], usage=usage, metrics=metrics_of(ended)))
    yield DONE
