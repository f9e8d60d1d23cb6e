"""The part of vLLM that the benchmark's worker uses: an engine whose output depends on the sum of the prompt.

With drafts it emits three tokens per step, and five if the request has sources to draft from.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

__version__ = "0.0.fake"

print("what vLLM says on standard output")  # noqa: T201


class EngineArgs:
    """The settings, as they are."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class SamplingParams:
    """Sampling parameters of one request."""

    def __init__(self, *, temperature: float, max_tokens: int, extra_args: dict[str, Any] | None = None) -> None:
        assert temperature == 0
        self.max_tokens, self.extra_args = max_tokens, extra_args or {}


class LLMEngine:
    """An engine that advances all running requests in each step."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.speculation = settings.get("speculative_config", {})
        self.running: dict[str, Any] = {}

    @classmethod
    def from_engine_args(cls, arguments: EngineArgs) -> LLMEngine:
        if arguments.settings["model"] == "nowhere":
            sys.exit("there is no model 'nowhere'")
        return cls(arguments.settings)

    def add_request(self, name: str, prompt: dict[str, list[int]], parameters: SamplingParams) -> None:
        self.running[name] = SimpleNamespace(prompt=prompt["prompt_token_ids"], asked=parameters, said=[], drafted=0)

    def step(self) -> list[Any]:
        outputs = []
        for name, request in list(self.running.items()):
            count = 1
            if request.said and self.speculation:
                count = 5 if request.asked.extra_args else 3
                request.drafted += 7
            room = request.asked.max_tokens - len(request.said)
            request.said += [sum(request.prompt) + len(request.said) + ahead for ahead in range(min(count, room))]
            is_over = len(request.said) >= request.asked.max_tokens
            told = SimpleNamespace(num_draft_tokens=request.drafted) if self.speculation else None
            said = SimpleNamespace(token_ids=list(request.said), spec_decode_metrics=told)
            outputs.append(SimpleNamespace(request_id=name, outputs=[said], finished=is_over))
            if is_over:
                del self.running[name]
        return outputs
