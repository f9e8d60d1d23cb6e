"""The span of an HTTP request, the parent of the spans of its generations."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from antiphon.pipelines.tracing import Span

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
