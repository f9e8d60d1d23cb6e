"""/v1/responses: OpenAI's newer words for the same answers, whole or as named events. Keeps no conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from antiphon.pipelines.server.chat import ERRORS, chat_text
from antiphon.pipelines.server.chat_objects import ChatAsked
from antiphon.pipelines.server.errors import error_of
from antiphon.pipelines.server.jobs import Begun, Event, Finished, Grown, TextSoFar
from antiphon.pipelines.server.prompts import chat_prompt_of
from antiphon.pipelines.server.response_objects import ResponseAsked, response_object
from antiphon.pipelines.server.response_requests import ResponseRequest, as_chat
from antiphon.pipelines.server.response_stream import ResponseStream
from antiphon.pipelines.server.service import key_of, service_of
from antiphon.pipelines.server.streaming import DONE, event_line, merged, prepared, read_all, streamed, unless_gone

router = APIRouter(responses=ERRORS)


@router.post("/v1/responses", tags=["OpenAI"])
async def create_response(asked: ResponseRequest, request: Request, key: Annotated[str, Depends(key_of)]) -> Response:
    """Answer an input; with ``stream`` as named server-sent events."""
    service = service_of(request)
    chat_request = as_chat(asked)
    chat_request.check_offered()
    served = service.model(asked.model)
    prompt = await prepared(chat_prompt_of, chat_request, served.language_model.tokenizer)
    response = ResponseAsked(asked, ChatAsked(chat_request, served, prompt))
    jobs = service.submit([chat_text(service, response.chat, 0)], served, key, asked.user)
    if asked.stream:
        return await streamed(request, _lines(response, merged(jobs)), jobs)
    text = TextSoFar(jobs[0])
    await unless_gone(request, read_all([text]), jobs)
    return JSONResponse(response_object(response, text))


async def _lines(response: ResponseAsked, events: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[str]:
    """The stream; an error after its beginning is told as an event, and as a response that has failed."""
    stream, has_begun = ResponseStream(response), False
    try:
        async for _, event in events:
            for body in _told(stream, event):
                yield event_line(body, body["type"])
            has_begun = True
    except Exception as error:
        if not has_begun:
            raise
        for body in stream.fail(error_of(error)):
            yield event_line(body, body["type"])
    yield DONE


def _told(stream: ResponseStream, event: Event) -> list[dict[str, Any]]:
    match event:
        case Begun():
            return stream.begin(event)
        case Grown():
            return stream.grow(event)
        case Finished():
            return stream.finish(event)
