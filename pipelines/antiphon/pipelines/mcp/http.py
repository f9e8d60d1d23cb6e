"""MCP over streamable HTTP, with the keys, hosts, origins and limits of the HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import Route

from antiphon.pipelines.mcp.service_source import ACCESS
from antiphon.pipelines.server import readiness
from antiphon.pipelines.server.base_app import make_base_app
from antiphon.pipelines.server.request_limits import Message, Receive, Scope, Send
from antiphon.pipelines.server.service import Service

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"


class McpEndpoint:
    """The endpoint of MCP; every request is checked, also those of an open session.

    Args:
        service: the service.
    """

    path = PATH

    def __init__(self, service: Service) -> None:
        self._service = service
        self._manager: asyncio.Task[None] | None = None
        self._started: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._stop = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Accept requests until the context exits, which ends all sessions."""
        try:
            yield
        finally:
            self._stop.set()
            if self._manager is not None:
                await self._manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request.

        Raises:
            ApiError: 401, its key is not accepted; 429, the key has sent too many requests.
        """
        scope["route"] = self  # its path is a label of the metrics
        access = self._service.access(Headers(scope=scope).get("authorization"))
        manager = await self._sessions()
        from antiphon.pipelines.mcp.sessions import session_owner

        scope[ACCESS], scope["user"] = access, session_owner(access)
        is_open = False

        async def respond(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        await manager.handle_request(scope, receive, respond)
        if is_open:  # the SDK leaves streams unfinished when the server shuts down, which would be logged as an error
            await send({"type": "http.response.body", "body": b""})

    async def _sessions(self) -> StreamableHTTPSessionManager:
        """Return the manager of sessions, which the first request starts."""
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            self._manager = asyncio.create_task(self._manage(self._started))
        return await asyncio.shield(self._started)

    async def _manage(self, started: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            sessions = await asyncio.to_thread(import_module, "antiphon.pipelines.mcp.sessions")
            manager = sessions.session_manager(self._service)
            async with manager.run():
                started.set_result(manager)
                await self._stop.wait()
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)


def add_mcp(app: FastAPI, service: Service) -> None:
    """Serve MCP at /mcp of an application.

    Args:
        app: the application.
        service: its service.
    """
    endpoint, inner = McpEndpoint(service), app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[Any]:
        async with inner(application) as state, endpoint.running():
            yield state

    app.router.lifespan_context = lifespan
    app.router.routes.insert(0, Route(PATH, endpoint, include_in_schema=False))


def create_mcp_app(service: Service) -> FastAPI:
    """Return an application that serves MCP alone; it closes the service's request queue when it shuts down.

    Args:
        service: the service.
    """
    app = make_base_app(service, title="Antiphon MCP", openapi_url=None)
    app.include_router(readiness.router)
    add_mcp(app, service)
    return app
