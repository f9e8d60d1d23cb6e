"""Clients that ask a server of OpenAI's protocol one question after the other, and what became of each."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

import httpx

from tests.load.questions import Asked

WAITING = httpx.Timeout(None, connect=10)
DRAIN = 30
"""Seconds that the last questions are waited for."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address, the model's name there, the longest answer, and whether it takes ``references``."""

    url: str
    model: str
    max_tokens: int
    takes_references: bool

    def body(self, asked: Asked) -> dict[str, Any]:
        """The request, greedy and streamed."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": asked.messages,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body | ({"references": asked.passages} if self.takes_references else {})


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: seconds to its first characters and in all, and its tokens."""

    first: float
    seconds: float
    tokens: int


@dataclass(slots=True)
class Outcome:
    """What became of all requests; ``seconds`` is the time from the first question to the last answer.

    ``errors`` counts those that were answered with an error in the protocol's form, and connections that broke, by
    what the client was told; ``malformed`` counts whatever else came. ``begun`` has the pieces that came so far of each
    question that is not answered yet, one token each at least.
    """

    answers: list[Answered] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of all answers, and of those that were not finished."""
        return sum(each.tokens for each in self.answers) + sum(self.begun.values())

    @property
    def per_second(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    def first_at(self, share: float) -> float:
        """The seconds to the first characters that this share of the answers did not exceed."""
        ordered = sorted(each.first for each in self.answers)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def ask_for(
    target: Target,
    questions: Sequence[Asked],
    *,
    clients: int,
    seconds: float,
    stays: bool = False,
    drain: float = DRAIN,
) -> Outcome:
    """Have ``clients`` ask for ``seconds``, each a question whenever its last one is answered.

    A client that meets an error waits for a second with ``stays``, and asks on; without, it goes on at once. The last
    questions are waited for ``drain`` seconds; those that are not answered then are counted as unfinished.
    """
    outcome, numbers = Outcome(), count()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
    began = perf_counter()

    async with httpx.AsyncClient(timeout=WAITING, limits=limits) as http:

        async def client() -> None:
            while perf_counter() - began < seconds:
                number = next(numbers)
                is_answered = await _ask(http, target, questions[number % len(questions)], outcome, number)
                if not is_answered and stays:
                    await asyncio.sleep(1)

        asking = [asyncio.create_task(client()) for _ in range(clients)]
        _, late = await asyncio.wait(asking, timeout=seconds + drain)
        for each in late:
            each.cancel()
        for ended in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
    outcome.seconds = perf_counter() - began
    return outcome


async def _ask(http: httpx.AsyncClient, target: Target, asked: Asked, outcome: Outcome, number: int) -> bool:
    outcome.begun[number] = 0
    try:
        outcome.answers.append(await _answered(http, target, asked, outcome.begun, number))
    except _ProtocolError as error:
        outcome.errors[str(error)] += 1
    except httpx.TransportError as error:  # the connection could not be made, or broke
        outcome.errors[type(error).__name__] += 1
    except (ValueError, KeyError) as error:
        outcome.malformed[f"{type(error).__name__}: {error}"] += 1
    else:
        del outcome.begun[number]
        return True
    del outcome.begun[number]
    return False


class _ProtocolError(Exception):
    """An error in the protocol's form."""


async def _answered(
    http: httpx.AsyncClient, target: Target, asked: Asked, begun: dict[int, int], number: int
) -> Answered:
    began, first, tokens = perf_counter(), 0.0, 0
    async with http.stream("POST", f"{target.url}/v1/chat/completions", json=target.body(asked)) as response:
        if response.status_code != 200:
            _raise_error(json.loads(await response.aread()), response.status_code)
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                _raise_error(event, 200)
            if _says(event):
                first = first or perf_counter() - began
                begun[number] += 1
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    if not tokens:
        raise ValueError("the stream ended without usage")
    seconds = perf_counter() - began
    return Answered(first or seconds, seconds, tokens)


def _says(event: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in event["choices"])


def _raise_error(body: Any, status: int) -> None:
    error = body["error"]
    if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys():
        raise ValueError(f"{status} without an error in the protocol's form")
    raise _ProtocolError(f"{status} {error['code'] or error['type']}")
