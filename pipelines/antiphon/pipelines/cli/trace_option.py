"""The option `--trace` of the commands that answer questions: exports traces."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

Trace = Annotated[
    str,
    typer.Option(
        "--trace",
        envvar="OTEL_TRACES_EXPORTER",
        help='Where to export traces: "otlp" (a collector), "console" (standard error) or "none".',
    ),
]

_SHOWN = ("antiphon.", "gen_ai.usage.", "http.response.", "error.")
"""Prefixes of attribute names. Only attributes with such a prefix are shown on the console, without the prefix."""


def start_traces(exporter: str) -> None:
    """Export traces until the process ends; do nothing if opentelemetry-instrument started the process.

    Args:
        exporter: "otlp", "console" or "none". The collector of "otlp" is set by OpenTelemetry's
            environment variables.

    Raises:
        ValueError: there is no such exporter.
        ImportError: OpenTelemetry's SDK is not installed.
    """
    if exporter == "none":
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            ConsoleSpanExporter,
            SimpleSpanProcessor,
        )
    except ImportError as error:
        message = "Traces need OpenTelemetry's SDK and exporter; run: pip install 'antiphon[traces]'"
        raise ImportError(message) from error
    from antiphon.pipelines.tracing import use_tracer_provider

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    processor: SpanProcessor
    if exporter == "console":
        processor = SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr, formatter=span_line))
    elif exporter == "otlp":
        processor = BatchSpanProcessor(OTLPSpanExporter())
    else:
        message = f"There is no exporter of traces {exporter!r}; choose 'otlp', 'console' or 'none'."
        raise ValueError(message)
    resource = Resource.create({SERVICE_VERSION: version("antiphon")})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "antiphon"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(processor)
    use_tracer_provider(provider)


def span_line(span: ReadableSpan) -> str:
    """Return a span as one line: the start of its trace id, then its name, duration and attributes."""
    milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    shown = [
        f"  {name.removeprefix(prefix)}={value!r}"
        for name, value in (span.attributes or {}).items()
        for prefix in _SHOWN
        if name.startswith(prefix)
    ]
    trace_id = f"{span.context.trace_id:032x}"[:8]
    return f"{trace_id} {span.name:<36}{milliseconds:>10.1f} ms{''.join(shown)}\n"
