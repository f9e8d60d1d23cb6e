"""Where traces go: to a collector over OTLP, or to the terminal as a tree of durations.

Imported only if traces are exported, because it needs OpenTelemetry's SDK.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TextIO

from antiphon.pipelines.tracing import use_tracer_provider

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SimpleSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )
    from opentelemetry.trace import StatusCode
except ImportError as error:
    raise ImportError("Traces need OpenTelemetry's SDK and exporter; run: pip install 'antiphon[traces]'") from error

ONLY_HTTP = (
    "{} is {!r}; traces are exported as 'http/protobuf', which a collector receives at another port, usually 4318."
)

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

_MAX_WRITTEN = 1000
"""Number of requests whose spans are expected after the request has ended."""

_SHOWN = ("antiphon.", "gen_ai.usage.", "gen_ai.response.finish_", "http.response.", "error.")
"""The beginnings of the names of attributes that `format_trace` shows, without these beginnings."""


def export_traces(exporter: str, out: TextIO | None = None) -> TracerProvider:
    """Record the traces of this process and export them until it ends; return the tracer provider.

    Args:
        exporter: "otlp": to the collector that OpenTelemetry's environment variables name; "console": as text.
        out: where the text is written; by default standard error.

    Raises:
        ValueError: there is no such exporter, or the environment asks for OTLP over gRPC.
    """
    if exporter not in ("otlp", "console"):
        raise ValueError(f"There is no exporter of traces {exporter!r}; choose 'otlp' or 'console', or 'none'.")
    provider = TracerProvider(resource=_resource())
    if exporter == "console":
        provider.add_span_processor(SimpleSpanProcessor(TracePrinter(out or sys.stderr)))
    else:
        _check_protocol(os.environ)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use_tracer_provider(provider)
    return provider


def _check_protocol(environment: Mapping[str, str]) -> None:
    name = next((each for each in _PROTOCOLS if environment.get(each)), None)
    if name is not None and environment[name] != "http/protobuf":
        raise ValueError(ONLY_HTTP.format(name, environment[name]))


def _resource() -> Resource:
    """Return the resource of the environment, named "antiphon" unless the environment names the service."""
    resource = Resource.create({SERVICE_VERSION: importlib.metadata.version("antiphon")})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "antiphon"}))
    return resource


class TracePrinter(SpanExporter):
    """Writes each trace as a tree: duration, share of the request and attributes of every span.

    A trace is written when its root span ends. Spans that end later, because a request was cancelled, are written then.

    Args:
        out: where the text is written.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._spans: dict[int, list[ReadableSpan]] = {}  # by trace
        self._written: dict[int, None] = {}  # ids of root spans
        self._lock = Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Collect spans, and write the traces whose root span is among them."""
        with self._lock:
            for span in spans:
                self._add(span)
        return SpanExportResult.SUCCESS

    def _add(self, span: ReadableSpan) -> None:
        self._spans.setdefault(span.context.trace_id, []).append(span)
        is_root = span.parent is None or span.parent.is_remote
        if is_root:
            self._written[span.context.span_id] = None
            if len(self._written) > _MAX_WRITTEN:
                del self._written[next(iter(self._written))]
        if is_root or (span.parent is not None and span.parent.span_id in self._written):
            self._out.write(format_trace(self._spans.pop(span.context.trace_id)))
            self._out.flush()

    def shutdown(self) -> None:
        """Write the traces that are left."""
        for spans in self._spans.values():
            self._out.write(format_trace(spans))
        self._spans.clear()


def format_trace(spans: Sequence[ReadableSpan]) -> str:
    """Return the spans of one trace as a tree, one line each.

    Args:
        spans: the spans, in any order.
    """
    ids = {span.context.span_id for span in spans}
    tops = [span for span in spans if span.parent is None or span.parent.span_id not in ids]
    lines = [f"trace {spans[0].context.trace_id:032x}"]
    for top in sorted(tops, key=_start):
        _add_lines(lines, top, spans, max(_milliseconds(top), 1e-6), 1)
    return "\n".join(lines) + "\n"


def _add_lines(lines: list[str], span: ReadableSpan, spans: Sequence[ReadableSpan], total: float, depth: int) -> None:
    duration, name = _milliseconds(span), "  " * depth + span.name
    error = " ERROR" if span.status.status_code is StatusCode.ERROR else ""
    lines.append(f"{name:<40}{duration:>10.1f} ms{100 * duration / total:>7.1f} %{error}{_attributes(span)}")
    children = [each for each in spans if each.parent is not None and each.parent.span_id == span.context.span_id]
    for child in sorted(children, key=_start):
        _add_lines(lines, child, spans, total, depth + 1)


def _attributes(span: ReadableSpan) -> str:
    shown = ""
    for name, value in (span.attributes or {}).items():
        prefix = next((each for each in _SHOWN if name.startswith(each)), None)
        if prefix is not None:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            shown += f"  {name.removeprefix(prefix)}={text}"
    return shown


def _start(span: ReadableSpan) -> int:
    return span.start_time or 0


def _milliseconds(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - _start(span)) / 1e6
