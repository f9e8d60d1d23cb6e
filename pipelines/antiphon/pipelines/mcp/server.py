"""The MCP server: offers search, answers and documents as tools and resources, within the rights of the API key.

Modules that import model libraries are imported in functions, so that the server can answer its client before the
service is loaded.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, ToolAnnotations
from pydantic import Field, create_model

from antiphon.pipelines.mcp.documents import document_uri, list_documents, read_document
from antiphon.pipelines.mcp.results import (
    AskResult,
    CitedSpan,
    FoundPassage,
    PassageResult,
    Quote,
    SearchResult,
)
from antiphon.pipelines.question import Question
from antiphon.pipelines.rendering.segments import file_name, outdated_note, place_of
from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.errors import ApiError, to_api_error
from antiphon.pipelines.server.passage_filter import check_filter
from antiphon.retrieval.source_file import file_change

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer
    from antiphon.pipelines.server.collections import Collection
    from antiphon.pipelines.server.service import Service
    from antiphon.retrieval import Passage

INSTRUCTIONS = (
    "Answers and passages from a collection of documents. Use ask for a question, search for "
    "passages about a topic, and read_passage or the resources for the text around a citation."
)
LOADING = "Loading the documents and the model"

LOADING_SECONDS = 2.0
"""Seconds between two progress notifications while the service is loading."""

TOKENS_SECONDS = 0.25
"""Minimum number of seconds between two progress notifications while an answer is generated."""

ACCESS = "antiphon.access"
"""The key in an HTTP request's scope under which the rights of the request's API key are stored."""

_READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
logger = logging.getLogger("antiphon.server")

Text = Annotated[str, Field(min_length=1, max_length=4000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
CollectionName = Annotated[Name | None, Field(description="Name of the collection; needed only if there are several.")]
Where = Annotated[
    Annotated[dict[str, Any], Field(max_length=20)] | None,
    Field(
        description="Filter of metadata: names with values, or with operators such as $gte and "
        "$in; $and, $or and $not join filters. "
        'Example: {"language": "en", "year": {"$gte": 2020}}'
    ),
]


@dataclass(frozen=True, slots=True)
class ServerState:
    """The service (it may still be loading), and whether the client runs on this machine.

    A local client started the server itself, so it needs no key and may see the paths of documents.
    """

    loading: asyncio.Future[Service]
    is_local: bool


RequestContext = ServerRequestContext[ServerState, Any]
ToolContext = Context[ServerState, Any]


class Call:
    """A request of a client: the service, the rights of its API key, and its progress."""

    service: Service
    access: Access

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx, self._reports = ctx, 0
        self.is_local = ctx.lifespan_context.is_local

    async def load(self) -> None:
        """Wait for the service, and read the rights of this request's API key; runs for every request of a session."""
        loading = self._ctx.lifespan_context.loading
        while not loading.done():
            await self.report(LOADING)
            await asyncio.wait({loading}, timeout=LOADING_SECONDS)
        if (error := loading.exception()) is not None:
            raise ApiError(503, f"The documents or the model cannot be loaded: {error}") from error
        self.service = loading.result()
        scope = {} if self._ctx.request is None else self._ctx.request.scope
        found = Access() if self.is_local else scope.get(ACCESS)
        self.access = self.service.access(None) if found is None else found

    async def report(self, message: str) -> None:
        """Send a progress notification with a running number, because the total is unknown."""
        self._reports += 1
        await self._ctx.session.report_progress(self._reports, None, message)

    def collection(self, name: str | None) -> Collection:
        """Return a collection that the client may read."""
        return self.service.collection(name, self.access)

    def source(self, source: str) -> str:
        """Return the source of a document as the client may see it."""
        return source if self.is_local else file_name(source)

    def passage(self, passage: Passage) -> dict[str, Any]:
        """Return the fields of a passage."""
        return {
            "id": passage.id,
            "source": self.source(passage.source),
            "title": str(passage.metadata.get("title") or ""),
            "location": passage.location,
            "text": passage.text,
            "outdated": file_change(passage.metadata),
        }


@asynccontextmanager
async def open_call(ctx: RequestContext, *, of_tool: bool = False) -> AsyncIterator[Call]:
    """Yield the `Call` of a request. Errors become tool results that say what to change, or protocol errors."""
    try:
        call = Call(ctx)
        await call.load()
        yield call
    except Exception as error:
        found = to_api_error(error)  # logs it unless the client caused it
        message = str(found).encode("utf-8", "replace").decode()
        if of_tool:
            raise ToolError(message) from error
        raise MCPError(INVALID_PARAMS if found.status < 500 else INTERNAL_ERROR, message) from error


async def search(
    ctx: ToolContext,
    query: Annotated[Text, Field(description="A question, or words to search for.")],
    k: Annotated[int, Field(ge=1, le=50, description="Maximum number of passages.")] = 5,
    where: Where = None,
    collection: CollectionName = None,
) -> SearchResult:
    """Search the documents and return the best passages, with sources, places and scores."""
    async with open_call(ctx.request_context, of_tool=True) as call:
        chosen = call.collection(collection)
        asked = Question(query)
        check_filter(where)
        await call.report("Searching")
        passages = await asyncio.to_thread(chosen.retriever.search, asked.complete, k, where=where)
        await call.report(f"{len(passages)} passages found")
        fields = await asyncio.to_thread(lambda: [call.passage(passage) for passage in passages])  # may read files
        scores = [None if each.score is None else float(each.score) for each in passages]
        found = [FoundPassage(**each, score=score) for each, score in zip(fields, scores, strict=True)]
        return SearchResult(collection=chosen.name, passages=found)


async def ask(
    ctx: ToolContext,
    question: Annotated[Text, Field(description="One complete question.")],
    collection: CollectionName = None,
) -> AskResult:
    """Answer a question from the documents, with citations of the passages that it quotes or names.

    If the documents do not contain the answer, is_refusal is true; do not make up an answer then.
    """
    async with open_call(ctx.request_context, of_tool=True) as call:
        chosen = call.collection(collection)
        await call.report("Searching")
        answer = await _answer(call, chosen, question)

        def quote(found: Any) -> dict[str, Any]:
            return {
                "text": found.text,
                "passage_id": answer.passages[found.passage - 1].id,
                "source": call.source(found.source),
                "location": place_of(found.location, found.section),
                "outdated": found.outdated,
            }

        return AskResult(
            collection=chosen.name,
            answer=answer.text,
            is_refusal=answer.is_refusal,
            citations=[
                CitedSpan(**quote(span), start=span.start, end=span.end, kind=span.kind, unsupported=span.unsupported)
                for span in answer.citations
            ],
            nearest=[Quote(**quote(sentence)) for sentence in answer.nearest],
            outdated=outdated_note(
                replace(each, source=call.source(each.source)) for each in answer.citations or answer.nearest
            ),
            passage_ids=[passage.id for passage in answer.passages],
            produced_by=answer.caption,
            is_complete=answer.finish_reason == "stop",
        )


async def _answer(call: Call, collection: Collection, question: str) -> Answer:
    """Generate an answer; after a cancellation, decoding stops at the end of the current forward pass."""
    from antiphon.accel.text.messages import Conversation
    from antiphon.pipelines.answer import Answer
    from antiphon.pipelines.request_plan import default_max_new_tokens
    from antiphon.pipelines.server.request_queue import CollectedText, Delta, Started

    models = call.service.readable_models(call.access).values()
    served = next(model for model in models if model.collection == collection.name)
    prompt = Conversation([{"role": "user", "content": question}])
    limit = min(default_max_new_tokens(served.language_model), call.service.settings.max_output_tokens)
    start = partial(call.service.start, served, prompt, {"max_new_tokens": limit})
    [job] = call.service.submit([start], served, call.access.key, None)
    text, reported_at = CollectedText(job), 0.0
    try:
        async for event in job.events():
            text.add(event)
            if isinstance(event, Started):
                await call.report(f"{len(event.passages)} passages found; writing the answer")
            elif isinstance(event, Delta) and monotonic() - reported_at >= TOKENS_SECONDS:
                await call.report(f"{len(text.tokens)} tokens written")
                reported_at = monotonic()
    finally:
        job.cancel()
    completion, plan = text.finished.completion, text.started.plan
    citations = await asyncio.to_thread(plan.cite, completion.text)
    return Answer.from_completion(
        question, completion, passages=plan.passages, citations=citations, model=served.language_model.name
    )


async def read_passage(
    ctx: ToolContext,
    id: Annotated[Name, Field(description="A passage's id, from the result of another tool.")],
    collection: CollectionName = None,
) -> PassageResult:
    """Return the whole text of a passage by its id, with its place in its document."""
    async with open_call(ctx.request_context, of_tool=True) as call:
        chosen = call.collection(collection)
        found = await asyncio.to_thread(chosen.index.passage, id)
        if found is None:
            raise ApiError(404, f"The collection {chosen.name!r} has no passage with this id.")
        return PassageResult(
            **await asyncio.to_thread(call.passage, found),
            collection=chosen.name,
            start=found.start,
            end=found.end,
            also_in=[call.source(source) for source in found.also_in],
            document=document_uri(chosen.name, found.source),
        )


async def document(ctx: ToolContext, collection: str, document: str, start: str = "0") -> str:
    """Read a document, from the character `start` on; long documents come in parts."""
    async with open_call(ctx.request_context) as call:
        return await asyncio.to_thread(read_document, call.collection(collection), document, start)


async def list_for_client(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """List the documents that the client of a request may read, and the names of their collections."""
    if ctx.method == "resources/list":
        async with open_call(ctx) as call:
            cursor = (ctx.params or {}).get("cursor")
            readable = call.service.readable(call.access)
            return await asyncio.to_thread(list_documents, readable, cursor, call.source)
    result = await call_next(ctx)
    loading = ctx.lifespan_context.loading
    if ctx.method == "tools/list" and loading.done() and not loading.exception():
        async with open_call(ctx) as call:
            names = [*call.service.readable(call.access)]
        for tool in result["tools"] if isinstance(result, dict) and names else ():
            tool["inputSchema"]["properties"]["collection"]["anyOf"][0]["enum"] = names
    return result


def _strict_tool(function: Callable[..., Any], title: str) -> Tool:
    """Return a tool that refuses unknown arguments and wrong types with a message, so that agents can correct them."""
    tool = Tool.from_function(function, title=title, description=inspect.getdoc(function), annotations=_READ_ONLY)
    model = create_model(
        "Arguments",
        __base__=tool.fn_metadata.arg_model,
        __cls_kwargs__={"extra": "forbid", "strict": True},
    )
    tool.fn_metadata.arg_model, tool.parameters = model, model.model_json_schema()
    return tool


def make_mcp_server(load: Callable[[], Service], *, is_local: bool) -> MCPServer[ServerState]:
    """Return an MCP server that loads its service when it starts.

    Args:
        load: loads the service, in a thread.
        is_local: see `ServerState`.
    """

    def logged_load() -> Service:
        try:
            return load()
        except Exception as error:
            logger.error("the documents or the model cannot be loaded: %s", error)  # noqa: TRY400
            raise

    @asynccontextmanager
    async def lifespan(_: MCPServer[ServerState]) -> AsyncIterator[ServerState]:
        loaded = asyncio.get_running_loop().run_in_executor(None, logged_load)
        loaded.add_done_callback(
            lambda future: future.cancelled() or future.exception()
        )  # logged, though nothing awaits it
        yield ServerState(loaded, is_local)

    server = MCPServer(
        "antiphon",
        version=version("antiphon"),
        title="Antiphon",
        instructions=INSTRUCTIONS,
        tools=[
            _strict_tool(search, "Search the documents"),
            _strict_tool(ask, "Ask the documents"),
            _strict_tool(read_passage, "Read a passage"),
        ],
        lifespan=lifespan,
        log_level="WARNING",
        subscriptions=False,
        middleware=[list_for_client],
    )
    server.resource("antiphon://documents/{collection}/{document}{?start}")(document)
    return server
