"""The SDK's sessions of streamable HTTP, each of which belongs to the API key that opened it."""

from __future__ import annotations

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from antiphon.pipelines.mcp.server import make_mcp_server
from antiphon.pipelines.mcp.service_source import ServiceSource
from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.service import Service

MAX_SESSIONS = 1000
"""Maximum number of open sessions; clients of the protocol's newer versions need none."""


def session_manager(service: Service) -> StreamableHTTPSessionManager:
    """Return the manager of a service's sessions."""
    server = make_mcp_server(ServiceSource(lambda: service), is_local=False)
    limit = service.settings.max_body_bytes
    return StreamableHTTPSessionManager(server, max_sessions=MAX_SESSIONS, max_request_body_size=limit)


def session_owner(access: Access) -> AuthenticatedUser | None:
    """Return the owner of the sessions that a request may use: its key's digest; None if no key is needed."""
    return AuthenticatedUser(AccessToken(token=access.key, client_id=access.key, scopes=[])) if access.key else None
