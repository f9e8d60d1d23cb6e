"""/v1/responses: OpenAI's newer words for the same answers, whole or as named events. Keeps no conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from antiphon.pipelines.server.chat import ERRORS, chat_text
from antiphon.pipelines.server.chat_objects import ChatAsked
from antiphon.pipelines.server.jobs import Begun, Event, Finished, Grown, TextSoFar
from antiphon.pipelines.server.prompts import chat_prompt_of
from antiphon.pipelines.server.response_objects import ResponseAsked, ResponseStream, response_object
from antiphon.pipelines.server.response_requests import ResponseRequest, as_chat
from antiphon.pipelines.server.service import key_of, service_of
from antiphon.pipelines.server.streaming import event_line, merged, prepared, read_all, streamed, unless_gone

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
        return await streamed(_lines(response, merged(jobs)), jobs)
    text = TextSoFar(jobs[0])
    await unless_gone(request, read_all([text]), jobs)
    return JSONResponse(response_object(response, text))


async def _lines(response: ResponseAsked, events: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[str]:
    stream = ResponseStream(response)
    async for _, event in events:
        match event:
            case Begun():
                bodies = stream.begin(event)
            case Grown():
                bodies = stream.grow(event)
            case Finished():
                bodies = stream.finish(event)
        for body in bodies:
            yield event_line(body, body["type"])
