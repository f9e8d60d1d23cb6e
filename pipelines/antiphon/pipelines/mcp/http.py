"""MCP over streamable HTTP, with the keys, hosts, origins and limits of the HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from antiphon.pipelines.mcp.server import ACCESS, make_mcp_server
from antiphon.pipelines.mcp.service_source import ServiceSource
from antiphon.pipelines.server import readiness
from antiphon.pipelines.server.errors import add_error_handlers
from antiphon.pipelines.server.request_limits import Receive, RequestLimits, Scope, Send
from antiphon.pipelines.server.service import Service

PATH = "/mcp"

MAX_SESSIONS = 1000
"""Maximum number of open sessions; clients of the protocol's newer versions need none."""


class McpEndpoint:
    """The endpoint of MCP. A session belongs to the key that opened it, and every request is checked.

    Args:
        service: the service.
    """

    path = PATH

    def __init__(self, service: Service) -> None:
        self._service = service
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Accept sessions until the context exits."""
        server = make_mcp_server(ServiceSource(lambda: self._service), is_local=False)
        self._manager = StreamableHTTPSessionManager(
            server, max_sessions=MAX_SESSIONS, max_request_body_size=self._service.settings.max_body_bytes
        )
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request.

        Raises:
            ApiError: 401, its key is not accepted; 429, the key has sent too many requests.
        """
        access = self._service.access(Headers(scope=scope).get("authorization"))
        assert self._manager is not None
        scope["route"], scope[ACCESS] = self, access
        if access.key:
            token = AccessToken(token=access.key, client_id=access.key, scopes=[])  # the digest: the key is not kept
            scope["user"] = AuthenticatedUser(token)
        await self._manager.handle_request(scope, receive, send)


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

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.queue.close()

    app = FastAPI(title="Antiphon MCP", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.is_draining = False
    add_error_handlers(app)
    app.include_router(readiness.router)
    add_mcp(app, service)
    settings = service.settings
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Mcp-Session-Id"],
        )
    app.add_middleware(RequestLimits, settings=settings, metrics=service.metrics)
    return app
