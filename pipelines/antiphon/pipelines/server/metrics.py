"""What a server does, counted for Prometheus. Knows neither requests nor models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from antiphon.pipelines.server.jobs import Finished

SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
PER_STEP = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)


class ServerMetrics:
    """The figures of one server, each application's own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: Any = {"registry": self.registry, "namespace": "antiphon"}
        self.requests = Counter("requests", "Requests, by address and status.", ["path", "status"], **own)
        self.texts = Counter("texts", "Texts that have ended, and how.", ["finish"], **own)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts.", **own)
        self.cached_tokens = Counter("cached_prompt_tokens", "Tokens of prompts that were not read again.", **own)
        self.completion_tokens = Counter("completion_tokens", "Tokens written.", **own)
        self.steps = Counter("steps", "Forwards, counted for each text that they served.", **own)
        self.drafted = Counter("drafted_tokens", "Draft rows that were verified.", **own)
        self.accepted = Counter("accepted_tokens", "Draft rows that the model would have said itself.", **own)
        self.first_token = Histogram(
            "time_to_first_token_seconds", "From the request to the first token.", buckets=SECONDS, **own
        )
        self.seconds = Histogram("text_seconds", "From the request to the last token.", buckets=SECONDS, **own)
        self.tokens_per_step = Histogram("tokens_per_step", "Tokens of a text per forward.", buckets=PER_STEP, **own)

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Tell a value that is asked for when it is told."""
        Gauge(name, meaning, registry=self.registry, namespace="antiphon").set_function(value)

    def ended(self, event: Finished | BaseException) -> None:
        """Count a text that has ended."""
        if not isinstance(event, Finished):
            self.texts.labels("error").inc()
            return
        completion, steps = event.completion, event.completion.steps
        self.texts.labels(completion.finish_reason).inc()
        self.prompt_tokens.inc(completion.usage.prompt_tokens)
        self.cached_tokens.inc(max(completion.usage.prompt_tokens - steps.prefill_tokens, 0) if steps.steps else 0)
        self.completion_tokens.inc(completion.usage.completion_tokens)
        self.steps.inc(steps.steps)
        self.drafted.inc(steps.drafted)
        self.accepted.inc(steps.accepted)
        self.first_token.observe(event.first_seconds)
        self.seconds.observe(event.seconds)
        if steps.steps:
            self.tokens_per_step.observe(steps.tokens_per_step)

    def told(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)
