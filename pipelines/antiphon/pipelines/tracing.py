"""Traces: OpenTelemetry spans of a request, with the time and counts of each stage, but without text.

The root span is an HTTP request of the server, or an answer of `Rag`. Nothing is recorded unless the program itself
has imported OpenTelemetry, or `start_traces` exports traces.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import PurePath
from time import time_ns
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer, TracerProvider

    from antiphon.accel import Completion

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

INSTRUMENTATION = "antiphon"
"""The name of the instrumentation, and the value of ``gen_ai.provider.name``."""

_PARAMETERS = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
"""Options of `LanguageModel.stream` that are recorded as ``gen_ai.request.*``; none is a text."""

_provider: TracerProvider | None = None


def use_tracer_provider(provider: TracerProvider | None) -> None:
    """Record the spans of this process with a provider; None: OpenTelemetry's global provider, if it is set."""
    global _provider
    _provider = provider


def _tracer() -> Tracer | None:
    if _provider is None and "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider() if _provider is None else _provider
    is_unset = isinstance(provider, trace.ProxyTracerProvider)
    return None if is_unset else provider.get_tracer(INSTRUMENTATION)


class Span:
    """A child span of the current span of this thread or task; without a provider it records nothing.

    In a ``with`` block, it is the current span, and it ends with the block.

    Args:
        start: start time in nanoseconds since the epoch; None: now.
        **options: further arguments of OpenTelemetry's `Tracer.start_span`.
    """

    def __init__(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        start: int | None = None,
        **options: Any,
    ) -> None:
        self.start = time_ns() if start is None else start
        tracer = _tracer()
        options |= {"attributes": attributes, "start_time": self.start}
        self.span = None if tracer is None else tracer.start_span(name, **options)

    @property
    def is_recorded(self) -> bool:
        """Whether there is a provider, and the trace is sampled."""
        return self.span is not None and self.span.is_recording()

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        if self.span is not None:
            self.span.set_attributes(attributes)

    @contextmanager
    def activated(self) -> Iterator[None]:
        """Make this the current span in a ``with`` block; the span does not end with the block."""
        if self.span is None:
            yield
            return
        from opentelemetry.trace import use_span

        with use_span(self.span, record_exception=False, set_status_on_exception=False):
            yield

    def end(self, error: BaseException | str | None = None, *, at: int | None = None) -> None:
        """End the span.

        Args:
            error: the error, if the span failed; only its type is recorded, because its message may quote a question.
            at: end time in nanoseconds since the epoch; None: now.
        """
        if self.span is None:
            return
        if error is not None:
            from opentelemetry.trace import StatusCode

            self.span.set_status(StatusCode.ERROR)
            self.set({"error.type": error if isinstance(error, str) else type(error).__name__})
        self.span.end(at)

    def __enter__(self) -> Self:
        if self.span is not None:
            self._active = self.activated()
            self._active.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self.span is not None:
            self._active.__exit__(None, None, None)
            self.end(error)


def current_ids() -> dict[str, str]:
    """Return the ids of the current trace and span for a log line; empty if there are none."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    return ids if context.is_valid else {}


def start_generation(operation: str, requested: str, model: str, parameters: Mapping[str, Any]) -> Span:
    """Start the span of a generation by a language model.

    Args:
        operation: "chat" or "text_completion".
        requested: the name of the requested model, without the collection's name.
        parameters: options of `LanguageModel.stream`.
    """
    requested = model_name(requested)
    options = {name: parameters.get(name) for name in _PARAMETERS}
    options["max_tokens"] = parameters.get("max_new_tokens")
    return Span(
        f"{operation} {requested}",
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": INSTRUMENTATION,
            "gen_ai.request.model": requested,
            "gen_ai.response.model": model_name(model),
            **{f"gen_ai.request.{name}": value for name, value in options.items() if value is not None},
        },
    )


def end_generation(span: Span, completion: Completion, *, is_answer: bool, cached_tokens: int = 0) -> None:
    """End the span of a generation, and add its child spans "prefill" and "decode".

    Args:
        is_answer: whether the text is an answer from documents, which may be a refusal.
        cached_tokens: prompt tokens that an earlier request prefilled.
    """
    if not span.is_recorded:
        return
    from antiphon.pipelines.prompt import is_refusal  # here, so that this module is quick to import

    end, usage, steps = time_ns(), completion.usage, completion.steps
    span.set(
        {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": cached_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
            "gen_ai.response.finish_reasons": [completion.finish_reason],
        }
    )
    if is_answer:
        span.set({"antiphon.refusal": is_refusal(completion.text)})
    if steps.steps:
        first = min(span.start + int(steps.prefill_seconds * 1e9), end)
        decoding = {
            "antiphon.forward_passes": steps.steps,
            "antiphon.drafted_tokens": steps.drafted,
            "antiphon.accepted_tokens": steps.accepted,
            "antiphon.tokens_per_step": round(steps.tokens_per_step, 3),
            "antiphon.draft_seconds": round(steps.draft_seconds, 6),
            "antiphon.forward_seconds": round(steps.forward_seconds, 6),
        }
        with span.activated():
            prefill = {"antiphon.prefill_tokens": steps.prefill_tokens}
            Span("prefill", prefill, start=span.start).end(at=first)
            Span("decode", decoding, start=first).end(at=end)
    span.end(at=end)


def model_name(name: str) -> str:
    """Return the name of a model; for a path, only its last part."""
    path = PurePath(name)
    return path.name if path.is_absolute() or name.startswith((".", "~")) else name


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
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
    except ImportError as error:
        raise ImportError(
            "Traces need OpenTelemetry's SDK and exporter; run: pip install 'antiphon[traces]'"
        ) from error
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    processor: SpanProcessor
    if exporter == "console":
        processor = SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr, formatter=span_line))
    elif exporter == "otlp":
        processor = BatchSpanProcessor(OTLPSpanExporter())
    else:
        raise ValueError(f"There is no exporter of traces {exporter!r}; choose 'otlp', 'console' or 'none'.")
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
