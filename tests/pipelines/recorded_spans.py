"""Records the spans of a `with` block in memory, and looks at them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon.pipelines.tracing import use_tracer_provider


@contextmanager
def recorded_spans() -> Iterator[InMemorySpanExporter]:
    """Record the spans of this process until the ``with`` block exits."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    use_tracer_provider(provider)
    try:
        yield exporter
    finally:
        use_tracer_provider(None)


def tree(spans: Sequence[ReadableSpan]) -> dict[str, list[str]]:
    """Return for the name of each span that has children their names, in the order of their starts."""
    ordered = sorted(spans, key=lambda span: (span.start_time or 0, span.end_time or 0))
    found: dict[str, list[str]] = {}
    for span in ordered:
        parents = [each.name for each in spans if span.parent and each.context.span_id == span.parent.span_id]
        for parent in parents:
            found.setdefault(parent, []).append(span.name)
    return found


def named(spans: Iterable[ReadableSpan], name: str) -> ReadableSpan:
    """Return the only span with this name."""
    [found] = [span for span in spans if span.name == name]
    return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


def seconds(span: ReadableSpan) -> float:
    """Return the duration of a span."""
    start, end = times_of(span)
    return (end - start) / 1e9


def are_consecutive(spans: Sequence[ReadableSpan], parent: ReadableSpan) -> bool:
    """Return whether the children of a span follow each other, within its time."""
    children = [span for span in spans if span.parent and span.parent.span_id == parent.context.span_id]
    times = [time for span in sorted(children, key=lambda span: span.start_time or 0) for time in times_of(span)]
    start, end = times_of(parent)
    return len(children) > 1 and [start, *times, end] == sorted([start, *times, end])


def times_of(span: ReadableSpan) -> tuple[int, int]:
    """Return the start and the end of a span in nanoseconds."""
    return span.start_time or 0, span.end_time or 0


def texts(spans: Sequence[ReadableSpan]) -> list[str]:
    """Return every text that the spans contain: names, descriptions of errors, events, and attributes."""
    found: list[str] = []
    for span in spans:
        found += [span.name, span.status.description or ""]
        found += [event.name for event in span.events]
        for values in (span.attributes, *(event.attributes for event in span.events)):
            for name, value in (values or {}).items():
                found += [name, *map(str, value if isinstance(value, tuple) else (value,))]
    return found
