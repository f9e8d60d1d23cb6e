"""Prometheus metrics of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from antiphon.pipelines.server.request_queue import Finished

SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
TOKENS_PER_STEP = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)


class ServerMetrics:
    """The metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: Any = {"registry": self.registry, "namespace": "antiphon"}
        self.requests = Counter("requests", "HTTP requests, by path and status.", ["path", "status"], **own)
        self.generations = Counter("generations", "Generations that ended, by finish reason.", ["finish"], **own)
        self.prompt_tokens = Counter("prompt_tokens", "Prompt tokens.", **own)
        self.cached_tokens = Counter("cached_prompt_tokens", "Prompt tokens whose KV cache was reused.", **own)
        self.completion_tokens = Counter("completion_tokens", "Generated tokens.", **own)
        self.steps = Counter("steps", "Forward passes, counted once for each request in them.", **own)
        self.drafted = Counter("drafted_tokens", "Draft tokens that were verified.", **own)
        self.accepted = Counter("accepted_tokens", "Draft tokens that were accepted.", **own)
        self.first_token = Histogram(
            "time_to_first_token_seconds", "From the request to the first token.", buckets=SECONDS, **own
        )
        self.seconds = Histogram("generation_seconds", "From the request to the last token.", buckets=SECONDS, **own)
        self.tokens_per_step = Histogram(
            "tokens_per_step", "Tokens of a request per forward pass.", buckets=TOKENS_PER_STEP, **own
        )

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge.

        Args:
            name: the gauge's name, without the namespace.
            value: function that returns the value; called each time the metrics are read.
        """
        Gauge(name, description, registry=self.registry, namespace="antiphon").set_function(value)

    def count_generation(self, event: Finished | BaseException) -> None:
        """Count a generation that finished or failed."""
        if not isinstance(event, Finished):
            self.generations.labels("error").inc()
            return
        completion, steps = event.completion, event.completion.steps
        self.generations.labels(completion.finish_reason).inc()
        self.prompt_tokens.inc(completion.usage.prompt_tokens)
        self.cached_tokens.inc(event.cached_tokens if steps.steps else 0)
        self.completion_tokens.inc(completion.usage.completion_tokens)
        self.steps.inc(steps.steps)
        self.drafted.inc(steps.drafted)
        self.accepted.inc(steps.accepted)
        self.first_token.observe(event.first_token_seconds)
        self.seconds.observe(event.seconds)
        if steps.steps:
            self.tokens_per_step.observe(steps.tokens_per_step)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
