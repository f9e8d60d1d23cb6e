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
from starlette.routing import Route

from antiphon.pipelines.mcp.server import ACCESS, make_mcp_server
from antiphon.pipelines.server.request_limits import Receive, Scope, Send
from antiphon.pipelines.server.service import Service

MAX_SESSIONS = 1000
"""Maximum number of open sessions; clients of the protocol's newer versions need none."""


class McpEndpoint:
    """The MCP endpoint. It checks the API key of every request, also within an open session."""

    path = "/mcp"

    def __init__(self, service: Service, manager: StreamableHTTPSessionManager) -> None:
        self._service, self._manager = service, manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; refuse a session that another key opened."""
        scope["route"] = self  # the endpoint's path is a label of the metrics
        access = self._service.access(Headers(scope=scope).get("authorization"))
        scope[ACCESS] = access
        if access.key:
            token = AccessToken(token=access.key, client_id=access.key, scopes=[])
            scope["user"] = AuthenticatedUser(token)
        await self._manager.handle_request(scope, receive, send)


def add_mcp(app: FastAPI, service: Service) -> None:
    """Add the MCP endpoint at /mcp to an application."""
    server = make_mcp_server(lambda: service, is_local=False)
    limit = service.settings.max_body_bytes
    server.streamable_http_app(max_request_body_size=limit, max_sessions=MAX_SESSIONS, host="")
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[Any]:
        async with inner(application) as state, server.session_manager.run():
            yield state

    app.router.lifespan_context = lifespan
    endpoint = McpEndpoint(service, server.session_manager)
    app.router.routes.insert(0, Route(McpEndpoint.path, endpoint, include_in_schema=False))
