"""The span of an HTTP request, and the stages before and after its texts are generated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import time_ns
from typing import Any

from antiphon.pipelines.tracing import NOT_RECORDED, RequestSpan, Stages, current_tracer, start_answer

TRACED = ("/v1/", "/documents", "/passages", "/collections", "/mcp")
"""The beginnings of the paths that are traced; the page, its files and the checks of load balancers are not."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY")


class HttpSpan(RequestSpan):
    """The span of an HTTP request. The path is not recorded, because it may contain the name of a document."""

    _received_at = 0
    _respond: Stages | None = None

    def received(self) -> None:
        """Record the stage "receive", from the start of the request: its body is read and checked."""
        stages = self.stages()
        stages.begin("receive")
        stages.finish()
        self._received_at = self.last_at

    def respond(self) -> Stages:
        """Return the stage "respond", which started when the last text was generated, and ends with the request."""
        if self._respond is None:
            self._respond = self.stages()
            self._respond.begin("respond")
        return self._respond

    def end_http(self, method: str, route: str | None, status: int) -> None:
        """End the span of an HTTP request.

        Args:
            method: its method.
            route: the path of its endpoint, with parameters by name; None: there is no such endpoint.
            status: the status of the response.
        """
        now = time_ns()
        if self.last_at > self._received_at > 0:
            self.respond().end(at=now)
        if route is not None:
            self.span.update_name(_span_name(method, route))
            self.span.set_attribute("http.route", route)
        self.span.set_attribute("http.response.status_code", status)
        self.end(str(status) if status >= 500 else None, at=now)


CURRENT_REQUEST: ContextVar[HttpSpan | None] = ContextVar("antiphon-http-span", default=None)
"""The span of the HTTP request that the current task of the event loop handles."""


def start_http_span(scope: Mapping[str, Any], headers: Mapping[str, str], request_id: str) -> HttpSpan | None:
    """Start the span of an HTTP request, as a child of the client's span if it sent a ``traceparent``.

    Args:
        scope: the ASGI scope of the request.
        headers: its headers.
        request_id: its id in the log.

    Returns:
        The span; None if no tracer provider is set, or requests of this path are not traced.
    """
    tracer = current_tracer() if scope["path"].startswith(TRACED) else None
    if tracer is None:
        return None
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    method = scope["method"]
    attributes = {
        "http.request.method": method if method in _METHODS else "_OTHER",
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope["http_version"],
        "antiphon.request_id": request_id,
    }
    return HttpSpan(tracer, _span_name(method), SpanKind.SERVER, attributes, extract(headers, Context()))


def generation_stages(count: int) -> list[Stages]:
    """Return the stages of each text that the current HTTP request generates.

    Outside of an HTTP request, each text is an answer with its own root span.

    Args:
        count: the number of texts.
    """
    request = CURRENT_REQUEST.get()
    if request is None or request.is_ended:
        return [start_answer() for _ in range(count)]
    request.received()
    return [request.stages({"antiphon.choice": index} if count > 1 else None) for index in range(count)]


def mark_streamed() -> None:
    """Note that the response of the current HTTP request is streamed."""
    if (request := CURRENT_REQUEST.get()) is not None:
        request.is_streamed = True


@contextmanager
def citing() -> Iterator[Stages]:
    """Record that the citations of the current HTTP request are found, as a part of the stage "respond"."""
    request = CURRENT_REQUEST.get()
    stages = NOT_RECORDED if request is None or request.is_ended else request.respond()
    stages.part("cite")
    try:
        yield stages
    finally:
        stages.part("send")


def _span_name(method: str, route: str = "") -> str:
    return f"{method if method in _METHODS else 'HTTP'} {route}".strip()
