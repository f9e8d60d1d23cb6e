"""The MCP server: lists and calls tools, and lists and reads resources, with the rights of the client's key.

Modules that import models are imported in the handlers, after the service is loaded: the server answers its client
before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from antiphon.pipelines.mcp.schemas import TOOLS, ToolDefinition
from antiphon.pipelines.mcp.service_source import ACCESS, Report, ServiceSource
from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.errors import to_api_error

if TYPE_CHECKING:
    from antiphon.pipelines.server.service import Service

Result = TypeVar("Result")

URI_TEMPLATE = "antiphon://documents/{collection}/{document}{?start}"

INSTRUCTIONS = (
    "Answers and passages from a collection of documents. Use ask for a question, search for passages about a topic, "
    "and read_passage or the resources for the text around a citation."
)

_READ_ONLY = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)

Context = ServerRequestContext[Any, Any]


def make_mcp_server(source: ServiceSource, *, is_local: bool) -> Server[Any]:
    """Return the MCP server of a service.

    Args:
        source: the service, which is loaded when the first client connects.
        is_local: the client is a program of this machine's user and runs the server itself, so it needs no key and may
            see the paths of documents.
    """

    @asynccontextmanager
    async def loading(_: Server[Any]) -> AsyncIterator[None]:
        source.start()
        yield

    handlers = Handlers(source, is_local)
    return Server(
        "antiphon",
        version=version("antiphon"),
        title="Antiphon",
        instructions=INSTRUCTIONS,
        lifespan=loading,
        get_tool_input_schema=lambda _: None,  # no argument is repeated in an HTTP header
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_resource_templates,
        on_read_resource=handlers.read_resource,
    )


async def serve_stdio(source: ServiceSource) -> None:
    """Serve the client on standard input and output until it closes them.

    Meanwhile everything else that is written to standard output goes to standard error.

    Args:
        source: the service.
    """
    server = make_mcp_server(source, is_local=True)
    try:
        async with stdio_server() as (receive, send):
            await server.run(receive, send, server.create_initialization_options())
    finally:
        await source.close()


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of the protocol's requests.

    Attributes:
        source: the service.
        is_local: see `make_mcp_server`.
    """

    source: ServiceSource
    is_local: bool

    async def list_tools(self, ctx: Context, _: Any) -> types.ListToolsResult:
        """List the tools; the schema of `collection` has the names that the client may read, once they are known.

        Args:
            ctx: the request.
            _: the page; all tools are on the first one.
        """
        service = self.source.loaded
        names = [] if service is None else [*service.readable(self._access(ctx, service))]
        return types.ListToolsResult(tools=[_tool(each, names) for each in TOOLS.values()])

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Run a tool; an error is a result that says what to change, so that the agent can try again.

        Args:
            ctx: the request.
            params: the name of the tool, and its arguments.

        Raises:
            MCPError: there is no such tool.
        """
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no such tool; there are {', '.join(TOOLS)}.")
        try:
            arguments = tool.arguments.model_validate(params.arguments or {})
        except ValidationError as error:
            return _error(_reasons(tool, error))
        report = _reporter(ctx)
        try:
            service = await self.source.service(report)
            from antiphon.pipelines.mcp.tools import TOOL_FUNCTIONS, ToolCall

            call = ToolCall(service, self._access(ctx, service), report, self.is_local)
            result = await TOOL_FUNCTIONS[tool.name](call, arguments)
        except Exception as error:  # noqa: BLE001 - converted, and logged if the client did not cause it
            return _error(str(to_api_error(error)))
        fields = result.model_dump(mode="json")
        text = json.dumps(fields, ensure_ascii=False)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=fields)

    async def list_resources(self, ctx: Context, params: Any) -> types.ListResourcesResult:
        """List a page of the documents that the client may read.

        Args:
            ctx: the request.
            params: the cursor of the page.

        Raises:
            MCPError: the cursor is not valid.
        """
        service = await self._service(ctx)
        from antiphon.pipelines.mcp.resources import list_documents

        readable = service.readable(self._access(ctx, service))
        cursor = None if params is None else params.cursor
        entries, following = await _checked(asyncio.to_thread(list_documents, readable, cursor, self.is_local))
        resources = [
            types.Resource(
                uri=each.uri,
                name=each.name,
                title=each.title,
                description=f"Collection {each.collection}, {each.passages} passages",
                mime_type="text/plain",
            )
            for each in entries
        ]
        return types.ListResourcesResult(resources=resources, next_cursor=following)

    async def list_resource_templates(self, _: Context, __: Any) -> types.ListResourceTemplatesResult:
        """Describe the URIs of documents; the arguments have no effect."""
        description = "The text of a document, from a character on if start is given; long documents come in parts."
        template = types.ResourceTemplate(
            uri_template=URI_TEMPLATE, name="document", description=description, mime_type="text/plain"
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Return the text of a document, and if it is long the URI of its next part.

        Args:
            ctx: the request.
            params: the URI.

        Raises:
            MCPError: there is no such document, or the client may not read it.
        """
        service = await self._service(ctx)
        from antiphon.pipelines.mcp.resources import read_document

        uri, access = params.uri, self._access(ctx, service)
        text, following = await _checked(asyncio.to_thread(read_document, service, access, uri))
        meta = None if following is None else {"antiphon/next": following}
        contents = types.TextResourceContents(uri=uri, mime_type="text/plain", text=text, _meta=meta)
        return types.ReadResourceResult(contents=[contents])

    async def _service(self, ctx: Context) -> Service:
        return await _checked(self.source.service(_reporter(ctx)))

    def _access(self, ctx: Context, service: Service) -> Access:
        """Return the rights of a request; over HTTP those of the key in its own header, also in an open session."""
        if self.is_local:
            return Access()
        found = None if ctx.request is None else ctx.request.scope.get(ACCESS)
        return found if isinstance(found, Access) else service.access(None)


async def _checked(result: Awaitable[Result]) -> Result:
    """Return the result, or raise the protocol's error for what was raised."""
    try:
        return await result
    except Exception as error:
        api_error = to_api_error(error)
        code = types.INVALID_PARAMS if api_error.status < 500 else types.INTERNAL_ERROR
        raise MCPError(code, str(api_error)) from error


def _reporter(ctx: Context) -> Report:
    """Return the function that reports progress: numbered messages, as the number of steps is not known before."""
    count = 0

    async def report(message: str) -> None:
        nonlocal count
        count += 1
        await ctx.session.report_progress(count, None, message)

    return report


def _tool(tool: ToolDefinition, collections: list[str]) -> types.Tool:
    """Return the description of a tool.

    Args:
        tool: the tool.
        collections: the names of collections that the client may read; empty: not known yet.
    """
    schema = tool.arguments.model_json_schema()
    if collections:
        schema["properties"]["collection"]["anyOf"][0]["enum"] = collections
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema,
        output_schema=tool.result.model_json_schema(mode="serialization"),
        annotations=_READ_ONLY,
    )


def _error(message: str) -> types.CallToolResult:
    text = message.encode("utf-8", "replace").decode()
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _reasons(tool: ToolDefinition, error: ValidationError) -> str:
    """Return what is wrong with the arguments of a tool, without their values."""
    found = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in error.errors())
    return f"The arguments of {tool.name} are not valid: {found}. It takes {', '.join(tool.arguments.model_fields)}."
