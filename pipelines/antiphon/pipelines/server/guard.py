"""What every request passes before any endpoint: limits, manners and a line in the log. Knows no endpoint.

Plain ASGI around the application: nothing is buffered, so streams stay streams.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders

from antiphon.pipelines.server.bodies import Message, Receive, RequestBody, too_large
from antiphon.pipelines.server.errors import ApiError, ending, error_response
from antiphon.pipelines.server.metrics import ServerMetrics
from antiphon.pipelines.server.settings import ServerSettings

Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("antiphon.server.requests")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script and no style but the server's own files, and nothing from elsewhere."""

SECURE = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CURRENT: ContextVar[str] = ContextVar("request")
"""The number of the request that is being answered, for whatever is logged meanwhile."""

UPLOADS = "/documents"
_REQUEST_ID = re.compile(r"[\w.-]{1,64}")


class Guard:
    """Refuses bodies that are too large, hosts and pages that are not wanted; numbers and logs every request."""

    def __init__(self, app: App, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # whose body the protocol leaves out
        body = RequestBody(headers, receive, most=self._most(scope), seconds=self._settings.body_seconds)
        request_id = _identified(headers.get("x-request-id"))
        CURRENT.set(request_id)
        began, status, has_begun = perf_counter(), 500, False

        async def answer(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                own = MutableHeaders(scope=message)
                own["X-Request-ID"] = request_id
                for name, value in SECURE.items():
                    own.setdefault(name, value)
            elif body.is_coming and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await body.drop()
                message = {"type": "http.response.body"}
            await send(message)

        try:
            self._check(scope, headers, body)
            await self._app(asked, body.receive, answer)
        except ApiError as error:
            await error_response(error)(scope, receive, answer)
        except asyncio.CancelledError:  # the server ends, and this took longer than it waits
            body.leave()
            if not has_begun:
                await error_response(ending())(scope, receive, answer)
        finally:
            path = getattr(asked.get("route"), "path", "unknown")
            self._metrics.requests.labels(path, str(status)).inc()
            seconds = round(perf_counter() - began, 4)
            _log(request=request_id, method=scope["method"], path=path, status=status, seconds=seconds)

    def _most(self, scope: Scope) -> int:
        is_upload = scope["path"].startswith(UPLOADS)
        return self._settings.max_upload_bytes if is_upload else self._settings.max_body_bytes

    def _check(self, scope: Scope, headers: Headers, body: RequestBody) -> None:
        host = headers.get("host", "")
        if self._settings.hosts and _name_of(host) not in self._settings.hosts:
            raise ApiError(403, "This server does not answer to that name; start it with --allow-host to let it.")
        origin = headers.get("origin")
        if origin and origin not in self._settings.origins and urlsplit(origin).netloc != host:
            raise ApiError(403, "Web pages of other places may not ask here; start the server with --allow-origin.")
        if body.announced > self._most(scope):
            raise too_large(self._most(scope))


def _identified(given: str | None) -> str:
    """The client's own number of the request, if it is one that a log can hold; else a new one."""
    return given if given and _REQUEST_ID.fullmatch(given) else uuid4().hex


def _name_of(host: str) -> str:
    """The host without its port."""
    return urlsplit(f"//{host}").hostname or ""


def _log(**fields: Any) -> None:
    """One line of JSON; nothing that a client wrote is in it, but the number that it gave to its request."""
    logger.info(json.dumps(fields))
