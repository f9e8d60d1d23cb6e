"""Middleware that limits and logs every request before it reaches an endpoint.

It refuses hosts and origins with 403, bodies that are too large with 413, and bodies that arrive too slowly with 408.
It is plain ASGI middleware and buffers nothing, so it does not delay streams.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import nullcontext
from contextvars import ContextVar
from time import perf_counter
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders

from antiphon.pipelines.server.access_control import AccessKeys, check_host_and_origin
from antiphon.pipelines.server.errors import ApiError, BodyError, error_response, shutdown_error
from antiphon.pipelines.server.metrics import ServerMetrics
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.tracing import Span

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("antiphon.server.requests")

MIN_RATE = 16 * 2**10
"""Minimum rate of a body in bytes per second: each `MIN_RATE` bytes extend the timeout by one second."""

MAX_DISCARDED = 256 * 2**20
"""Maximum bytes of a refused body to read and discard; most clients send the whole body before they read."""

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
"""Allows the server's own scripts and styles only, nothing from other origins, and no markup that is not sanitized."""

SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
REQUEST_ID: ContextVar[str] = ContextVar("request")
"""The id of the current request, for log records."""

UPLOADS = "/documents"
_VALID_ID = re.compile(r"[\w.-]{1,64}")


class RequestBody:
    """The body of a request, limited in size and time.

    Args:
        timeout: seconds in which the body must arrive; each `MIN_RATE` received bytes add one second.
    """

    def __init__(self, headers: Headers, receive: Receive, *, max_bytes: int, timeout: float) -> None:
        length = headers.get("content-length", "0")
        self.content_length = int(length) if length.isdigit() else 0
        self._is_complete = not self.content_length and "transfer-encoding" not in headers
        self._waits_for_continue = headers.get("expect", "").lower() == "100-continue"
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._start = asyncio.get_running_loop().time()
        self._received = 0

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has been received, or there is none."""
        return self._is_complete

    @property
    def is_arriving(self) -> bool:
        """Whether the client is sending more of the body. A client that waits for ``100 Continue`` is not sending."""
        return not self._is_complete and not self._waits_for_continue

    async def receive(self) -> Message:
        """Return the next ASGI message: a piece of the body or, after the last piece, the client's disconnection.

        Raises:
            BodyError: the body is too large (413) or too slow (408).
        """
        if self._is_complete:
            return await self._receive()
        try:
            message = await self._next()
        except TimeoutError as error:
            raise BodyError(too_slow(self._timeout)) from error
        if self._received > self._max_bytes:
            raise BodyError(too_large(self._max_bytes))
        return message

    def abandon(self) -> None:
        """Stop waiting for the rest of the body."""
        self._is_complete = True

    async def discard(self) -> None:
        """Read and discard the rest of the body, so that a client which is still sending receives the response.

        Stops if the client sends too much or too slowly.
        """
        try:
            while self.is_arriving and self._received < MAX_DISCARDED:
                await self._next()
        except TimeoutError:
            return

    async def _next(self) -> Message:
        self._waits_for_continue = False
        async with asyncio.timeout_at(self._start + self._timeout + self._received / MIN_RATE):
            message = await self._receive()
        self._received += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        return message


def too_large(max_bytes: int) -> ApiError:
    """Return the error (413) for a body of more than ``max_bytes`` bytes."""
    return ApiError(413, f"The body is larger than {max_bytes} bytes, the limit of this server.", code="too_large")


def too_slow(timeout: float) -> ApiError:
    """Return the error (408) for a body that did not arrive in ``timeout`` seconds plus the time for its size."""
    message = (
        f"The body did not arrive within {timeout:g} s plus one second for each {MIN_RATE} bytes; send it at once."
    )
    return ApiError(408, message, code="too_slow", headers={"Connection": "close"})


class RequestLimits:
    """Middleware that refuses requests beyond the limits, gives every request an id, and counts and logs it.

    Args:
        keys: the accepted API keys; the body of a request without a valid key is not read.
    """

    def __init__(self, app: App, settings: ServerSettings, metrics: ServerMetrics, keys: AccessKeys) -> None:
        self._app = app
        self._keys = keys
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # HEAD is answered as GET; the HTTP protocol implementation omits the body.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        max_bytes = self._max_bytes(scope)
        body = RequestBody(headers, receive, max_bytes=max_bytes, timeout=self._settings.body_timeout)
        given_id = headers.get("x-request-id", "")
        request_id = given_id if _VALID_ID.fullmatch(given_id) else uuid4().hex
        REQUEST_ID.set(request_id)
        span = start_http_span(scope, headers, request_id)
        start, status, has_started, is_open = perf_counter(), 500, False, False

        async def respond(message: Message) -> None:
            nonlocal status, has_started, is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            if message["type"] == "http.response.start":
                status, has_started = message["status"], True
                response_headers = MutableHeaders(scope=message)
                response_headers["X-Request-ID"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    response_headers.setdefault(name, value)
            elif body.is_arriving and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await body.discard()
                message = {"type": "http.response.body"}
            await send(message)

        with nullcontext() if span is None else span.activated():
            try:
                check_host_and_origin(headers, self._settings)
                if body.content_length > max_bytes:
                    raise too_large(max_bytes)
                if not body.is_complete:  # all endpoints that read a body need a key
                    self._keys.access(headers.get("authorization"))
                try:
                    await self._app(inner, body.receive, respond)
                except asyncio.CancelledError:  # the server shuts down after the drain time
                    body.abandon()
                    if not has_started:
                        await error_response(shutdown_error())(scope, receive, respond)
                if is_open:  # a stream of MCP, which the shutdown has ended
                    await send({"type": "http.response.body"})
            except ApiError as error:
                await error_response(error)(scope, receive, respond)
            finally:
                method, path = scope["method"], getattr(inner.get("route"), "path", "unknown")
                self._metrics.requests.labels(path, str(status)).inc()
                seconds = round(perf_counter() - start, 4)
                line = {"method": method, "path": path, "status": status, "seconds": seconds}
                logger.info({"request": request_id, **line})
                if span is not None:
                    end_http_span(span, method, path, status)

    def _max_bytes(self, scope: Scope) -> int:
        is_upload = scope["path"].startswith(UPLOADS)
        return self._settings.max_upload_bytes if is_upload else self._settings.max_body_bytes


TRACED = ("/v1/", "/documents", "/passages", "/collections", "/mcp")
"""The beginnings of traced paths; the page and the checks of load balancers are not traced."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def start_http_span(scope: Mapping[str, Any], headers: Mapping[str, str], request_id: str) -> Span | None:
    """Start the span of an HTTP request, as a child of the client's span if the request has a ``traceparent``.

    The path is not recorded, because it may contain the name of a document.

    Returns:
        The span; None if requests of this path are not traced.
    """
    if "opentelemetry.trace" not in sys.modules or not scope["path"].startswith(TRACED):
        return None
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    attributes = {"http.request.method": _name(scope["method"]), "antiphon.request_id": request_id}
    context = extract(headers, Context())
    return Span(_name(scope["method"]), attributes, kind=SpanKind.SERVER, context=context)


def end_http_span(span: Span, method: str, route: str, status: int) -> None:
    """End the span of a request, and name it after the path of the endpoint, such as ``/documents/{id}``."""
    span.set({"http.route": route, "http.response.status_code": status})
    if span.span is not None:
        span.span.update_name(f"{_name(method)} {route}")
    span.end(str(status) if status >= 500 else None)


def _name(method: str) -> str:
    return method if method in _METHODS else "HTTP"
