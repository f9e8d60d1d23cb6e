"""The tools `search`, `ask` and `read_passage`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from antiphon.accel.text.messages import Conversation
from antiphon.pipelines.answer import Answer
from antiphon.pipelines.citations import cite
from antiphon.pipelines.mcp.resources import display_source, document_uri
from antiphon.pipelines.mcp.schemas import (
    AskArguments,
    AskResult,
    CitedSpan,
    FoundPassage,
    NearestText,
    PassageResult,
    ReadPassageArguments,
    SearchArguments,
    SearchResult,
    StrictModel,
)
from antiphon.pipelines.mcp.service_source import Report
from antiphon.pipelines.question_text import check_question
from antiphon.pipelines.rendering.segments import place_of
from antiphon.pipelines.request_plan import MAX_NEW_TOKENS
from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.generation import GenerationRequest
from antiphon.pipelines.server.passage_filter import check_filter
from antiphon.pipelines.server.request_queue import CollectedText, Delta, GenerationJob, Started
from antiphon.pipelines.server.service import Service
from antiphon.pipelines.server.streaming import run_in_thread
from antiphon.retrieval import Passage

TOKENS_REPORT_SECONDS = 0.25
"""Minimum number of seconds between two progress notifications while an answer is generated."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The context of one call of a tool.

    Attributes:
        service: the collections and models.
        access: the rights of the client's key.
        report: sends progress to the client.
        is_local: the client is a program of this machine's user, and may see the paths of documents.
    """

    service: Service
    access: Access
    report: Report
    is_local: bool

    def display_source(self, source: str) -> str:
        """Return the source of a document as the client may see it."""
        return display_source(source, is_local=self.is_local)


async def search(call: ToolCall, arguments: SearchArguments) -> SearchResult:
    """Return the passages that match a query best.

    Args:
        call: the call.
        arguments: query, number of passages, and filter.
    """
    check_question(arguments.query)
    collection = call.service.collection(arguments.collection, call.access)
    await call.report("Searching")
    found = await run_in_thread(_search, collection, arguments)
    await call.report(f"{len(found)} passages found")
    scores = [None if each.score is None else float(each.score) for each in found]
    passages = [
        FoundPassage(**_passage_fields(call, each), score=score) for each, score in zip(found, scores, strict=True)
    ]
    return SearchResult(collection=collection.name, passages=passages)


def _search(collection: Collection, arguments: SearchArguments) -> Sequence[Passage]:
    if arguments.where is None:
        return collection.rag.retriever.search(arguments.query, arguments.k)
    if collection.retriever is None:
        raise ApiError(400, f"where is not supported in the collection {collection.name!r}.", param="where")
    check_filter(arguments.where)
    return collection.retriever.search(arguments.query, arguments.k, where=arguments.where)


async def ask(call: ToolCall, arguments: AskArguments) -> AskResult:
    """Answer a question from the documents of a collection.

    Decoding stops after the current forward pass if the call is cancelled.

    Args:
        call: the call.
        arguments: the question.
    """
    check_question(arguments.question)
    service = call.service
    collection = service.collection(arguments.collection, call.access)
    served = next(each for each in service.readable_models(call.access).values() if each.collection == collection.name)
    await call.report("Searching")
    prompt = Conversation([{"role": "user", "content": arguments.question}])
    limits = {"max_new_tokens": min(MAX_NEW_TOKENS, service.settings.max_output_tokens)}
    [job] = service.submit([GenerationRequest(prompt, limits)], served, call.access.key, None)
    text = await _read(job, call.report)
    assert text.started is not None
    assert text.finished is not None
    completion, passages = text.finished.completion, text.started.passages
    citations = await run_in_thread(cite, completion.text, passages)
    name = served.language_model.name
    answer = Answer.from_completion(arguments.question, completion, passages, citations, name)
    return _ask_result(call, collection.name, answer)


async def _read(job: GenerationJob, report: Report) -> CollectedText:
    """Read a job to its end and report its progress; cancel it if this is cancelled."""
    text, reported = CollectedText(job), 0.0
    try:
        async for event in job.events():
            text.add(event)
            if isinstance(event, Started):
                await report(f"{len(event.passages)} passages found; writing the answer")
            elif isinstance(event, Delta) and event.tokens and monotonic() - reported >= TOKENS_REPORT_SECONDS:
                await report(f"{len(text.tokens)} tokens written")
                reported = monotonic()
    finally:
        job.cancel()
    return text


def _ask_result(call: ToolCall, collection: str, answer: Answer) -> AskResult:
    def place(found: Any) -> dict[str, Any]:
        """Return the fields that citations and nearest sentences share."""
        return {
            "text": found.text,
            "passage_id": answer.passages[found.passage - 1].id,
            "source": call.display_source(found.source),
            "location": place_of(found.location, found.section),
        }

    return AskResult(
        collection=collection,
        answer=answer.text,
        is_refusal=answer.is_refusal,
        citations=[CitedSpan(start=each.start, end=each.end, **place(each)) for each in answer.citations],
        nearest=[NearestText(**place(each)) for each in answer.nearest],
        passage_ids=[each.id for each in answer.passages],
        produced_by=answer.caption,
        is_complete=answer.finish_reason == "stop",
    )


async def read_passage(call: ToolCall, arguments: ReadPassageArguments) -> PassageResult:
    """Return a passage by its id.

    Args:
        call: the call.
        arguments: the id.

    Raises:
        ApiError: 404, the collection has no such passage.
    """
    collection = call.service.collection(arguments.collection, call.access)
    index = collection.index
    found = None if index is None else await run_in_thread(index.passage, arguments.id)
    if found is None:
        message = f"The collection {collection.name!r} has no passage with this id; its document may have been removed."
        raise ApiError(404, message, param="id")
    return PassageResult(
        **_passage_fields(call, found),
        collection=collection.name,
        start=found.start,
        end=found.end,
        also_in=[call.display_source(each) for each in found.also_in],
        document=document_uri(collection.name, found.source),
    )


def _passage_fields(call: ToolCall, passage: Passage) -> dict[str, Any]:
    return {
        "id": passage.id,
        "source": call.display_source(passage.source),
        "title": str(passage.metadata.get("title") or ""),
        "location": passage.location,
        "text": passage.text,
    }


TOOL_FUNCTIONS: dict[str, Callable[[ToolCall, Any], Awaitable[StrictModel]]] = {
    "search": search,
    "ask": ask,
    "read_passage": read_passage,
}
"""The functions of the tools by name."""
