"""Traces: OpenTelemetry spans of a request, with the time and the counts of each stage, and without any text.

A request has a root span: the HTTP request of the server, or an answer of `Rag`. Below it is one span for each stage,
and below some stages their parts. Each stage starts when the previous one ends, so their durations add up to that of
the request. A stage is recorded from any thread, through the `Stages` object that is passed along with the request.

Without a tracer provider in this process nothing is recorded, and `Stages` does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from time import time_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider

    from antiphon.accel import Completion

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

INSTRUMENTATION = "antiphon"
"""The name of the instrumentation, and the value of ``gen_ai.provider.name``."""

_REQUEST_PARAMETERS = {
    "max_new_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
}
"""The attribute of each recorded option of `LanguageModel.stream`; none of these options is a text."""

_provider: TracerProvider | None = None


def use_tracer_provider(provider: TracerProvider | None) -> None:
    """Record the spans of this process with a provider; None: with OpenTelemetry's global one, if it has been set."""
    global _provider
    _provider = provider


def current_tracer() -> Tracer | None:
    """Return the tracer, or None if no provider is set; a program that has set one has imported OpenTelemetry."""
    if _provider is None and "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider() if _provider is None else _provider
    is_unset = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    return None if is_unset else provider.get_tracer(INSTRUMENTATION)


class RequestSpan:
    """The root span of a request.

    Args:
        tracer: creates the spans.
        name: the name of the span.
        kind: its kind.
        attributes: its first attributes.
        parent: the context of its parent; None: the current one of the calling thread.
    """

    def __init__(self, tracer: Tracer, name: str, kind: SpanKind, attributes: Attributes, parent: Any = None) -> None:
        self.started_at = self.last_at = time_ns()  # and the end of the latest stage
        self.is_streamed = self.is_ended = False
        self.tracer = tracer
        self.span = tracer.start_span(name, parent, kind, attributes, start_time=self.started_at)

    @property
    def log_fields(self) -> dict[str, str]:
        """The ids of trace and span, for a log line."""
        context = self.span.get_span_context()
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def stages(self, attributes: Attributes | None = None, *, is_whole: bool = False) -> Stages:
        """Return a new sequence of stages below this span.

        Args:
            attributes: attributes of each stage.
            is_whole: this span begins and ends with these stages.
        """
        return Stages(self, attributes, is_whole=is_whole) if self.span.is_recording() else NOT_RECORDED

    def end(self, error_type: str | None = None, *, at: int | None = None) -> None:
        """End the span.

        Args:
            error_type: the type of the error, if the request failed.
            at: the time, in nanoseconds since the epoch; None: now.
        """
        if error_type is not None:
            _set_error(self.span, error_type)
        self.is_ended = True
        self.span.end(at)


class Stages:
    """The consecutive stages of a request, or of one of its texts, as spans below its root span.

    One thread at a time uses it. Without a root span, or if the trace is not sampled, it records nothing.

    Args:
        request: the root span; None: nothing is recorded.
        attributes: attributes of each stage.
        is_whole: the root span begins and ends with these stages.
    """

    def __init__(
        self, request: RequestSpan | None = None, attributes: Attributes | None = None, *, is_whole: bool = False
    ) -> None:
        self._request = request
        self._attributes = attributes or {}
        self._is_whole = is_whole
        self._began_at = self._opened_at = 0
        self._ended_at = 0 if request is None else request.started_at if is_whole else request.last_at
        self._stage: Span | None = None
        self._part: Span | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether spans are recorded."""
        return self._request is not None

    def begin(self, name: str, attributes: Attributes | None = None, *, at: int | None = None) -> None:
        """End the current stage and begin another one.

        Args:
            name: the name of its span.
            attributes: its attributes.
            at: the time, in nanoseconds since the epoch; None: when the previous stage ends.
        """
        if self._request is None:
            return
        self.end()
        self._began_at = self._ended_at if at is None else at
        self._stage = self._start(name, self._request.span, attributes, self._began_at)

    def part(self, name: str, attributes: Attributes | None = None) -> None:
        """End the current part of the stage and begin another one.

        Args:
            name: the name of its span.
            attributes: its attributes.
        """
        if self._stage is not None:
            now = time_ns()
            self._end_part(now)
            self._part = self._start(name, self._stage, attributes, now)

    def annotate(self, attributes: Attributes) -> None:
        """Add attributes to the current part, or to the stage if it has none."""
        span = self._part or self._stage
        if span is not None:
            span.set_attributes(attributes)

    def end(self, error: BaseException | None = None, *, at: int | None = None) -> None:
        """End the current stage, if there is one.

        Args:
            error: why the stage failed; its type is recorded, but not its message, which may quote a question.
            at: the time, in nanoseconds since the epoch; None: now.
        """
        if self._stage is None:
            return
        now = time_ns() if at is None else at
        for span in (self._part, self._stage):
            if span is not None and error is not None:
                _set_error(span, type(error).__name__)
        self._end_part(now)
        self._stage.end(now)
        self._stage, self._ended_at = None, now

    def waited(self, until: int | None = None) -> None:
        """Record the stage "queue", from the end of the stage "receive".

        Args:
            until: its end, in nanoseconds since the epoch; None: now.
        """
        self.begin("queue")
        self.end(at=until)

    def search_stage(self, name: str) -> None:
        """Begin a stage of the search, as `Retriever.search` reports it: "embed", "search" or "rerank"."""
        if name == "rerank":
            self.begin(name)
        else:
            self.part(name, {"gen_ai.operation.name": "embeddings"} if name == "embed" else None)

    def begin_generation(self, operation: str, requested: str, model: str, parameters: Mapping[str, Any]) -> None:
        """Begin the stage in which a language model generates.

        Args:
            operation: "chat" or "text_completion".
            requested: the name of the requested model, without that of a collection.
            model: the name of the model that generates.
            parameters: options of `LanguageModel.stream`.
        """
        if self._request is None:
            return
        requested = model_name(requested)
        options = {name: parameters.get(key) for key, name in _REQUEST_PARAMETERS.items()}
        self.begin(
            f"{operation} {requested}",
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": INSTRUMENTATION,
                "gen_ai.request.model": requested,
                "gen_ai.response.model": model_name(model),
                "gen_ai.output.type": "text" if parameters.get("json_schema") is None else "json",
                **{name: value for name, value in options.items() if value is not None},
            },
        )

    def opened(self) -> None:
        """Note that the request of the language model is ready, and that its first forward pass follows."""
        if self._request is not None:
            self._opened_at = time_ns()

    def end_generation(
        self,
        completion: Completion,
        *,
        cached_tokens: int = 0,
        first_token_seconds: float = 0.0,
        is_answer: bool = False,
    ) -> None:
        """End the stage of the language model, with its parts "prefill" and "decode".

        Args:
            completion: the completion, which may be cancelled.
            cached_tokens: prompt tokens that an earlier request prefilled.
            first_token_seconds: seconds from the request to the first token, for a streamed response.
            is_answer: whether it is an answer from documents, which may be a refusal.
        """
        if self._request is None or self._stage is None:
            return
        from antiphon.pipelines.prompt import is_refusal  # here, so that this module is quick to import

        now, usage, steps = time_ns(), completion.usage, completion.steps
        attributes: dict[str, Any] = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": cached_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.response.finish_reasons": [completion.finish_reason],
        }
        if usage.reasoning_tokens:
            attributes["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning_tokens
        if self._request.is_streamed:
            attributes["gen_ai.request.stream"] = True
            attributes["gen_ai.response.time_to_first_chunk"] = round(first_token_seconds, 6)
        if is_answer:
            attributes["antiphon.refusal"] = is_refusal(completion.text)
        if steps.weights:
            attributes["antiphon.weights"] = steps.weights
        self.annotate(attributes)
        if steps.steps:
            first = min(self._opened_at + int(steps.prefill_seconds * 1e9), now)
            prefill = {"antiphon.prefill_tokens": steps.prefill_tokens}
            self._start("prefill", self._stage, prefill, self._began_at).end(first)
            self._start("decode", self._stage, _decoding(completion), first).end(now)
        self.end(at=now)

    def finish(self, error: BaseException | None = None) -> None:
        """End the current stage, and the root span if it ends with these stages.

        Args:
            error: why the request failed.
        """
        if self._request is None:
            return
        self.end(error)
        self._request.last_at = max(self._request.last_at, self._ended_at)
        if self._is_whole:
            self._request.end(None if error is None else type(error).__name__, at=self._ended_at)

    def _start(self, name: str, parent: Span, attributes: Attributes | None, at: int) -> Span:
        from opentelemetry import trace

        assert self._request is not None
        context = trace.set_span_in_context(parent)
        return self._request.tracer.start_span(
            name, context, attributes={**self._attributes, **(attributes or {})}, start_time=at
        )

    def _end_part(self, at: int) -> None:
        if self._part is not None:
            self._part.end(at)
            self._part = None


NOT_RECORDED = Stages()
"""The stages of a request that is not traced."""


def start_answer() -> Stages:
    """Start the span of an answer of `Rag` and return its stages; the calling thread's current span is the parent."""
    if (tracer := current_tracer()) is None:
        return NOT_RECORDED
    from opentelemetry.trace import SpanKind

    attributes = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "answer"}
    return RequestSpan(tracer, "answer", SpanKind.INTERNAL, attributes).stages(is_whole=True)


def model_name(name: str) -> str:
    """Return the name of a model without the folders of this machine above it."""
    path = PurePath(name)
    return path.name if path.is_absolute() or name.startswith((".", "~")) else name


def _set_error(span: Span, error_type: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", error_type)


def _decoding(completion: Completion) -> Attributes:
    """Return the counts of all forward passes, with those of the prefill."""
    steps = completion.steps
    return {
        "antiphon.forward_passes": steps.steps,
        "antiphon.drafted_tokens": steps.drafted,
        "antiphon.accepted_tokens": steps.accepted,
        "antiphon.acceptance_rate": round(steps.acceptance, 4),
        "antiphon.tokens_per_step": round(steps.tokens_per_step, 3),
        "antiphon.draft_seconds": round(steps.draft_seconds, 6),
        "antiphon.forward_seconds": round(steps.forward_seconds, 6),
    }
