"""Clients that send questions to a server with OpenAI's protocol, and the results."""

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

from tests.load.questions import Question

TIMEOUT = httpx.Timeout(None, connect=10)
DRAIN = 30
"""Seconds to wait for the last answers."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how it is called.

    Attributes:
        url: its URL.
        model: the model's name.
        max_tokens: the longest answer.
        accepts_references: whether it accepts ``references``.
        keys: API keys, which the requests use in turns; if empty, none is sent.
    """

    url: str
    model: str
    max_tokens: int
    accepts_references: bool
    keys: tuple[str, ...] = ()

    def headers(self, number: int) -> dict[str, str]:
        """Return the headers of a request by its number."""
        return key_header(self.keys[number % len(self.keys)]) if self.keys else {}

    def body(self, question: Question) -> dict[str, Any]:
        """Return the body of a greedy, streaming request."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": question.messages,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body | ({"references": question.passages} if self.accepts_references else {})


def key_header(key: str) -> dict[str, str]:
    """Return the header that sends an API key."""
    return {"Authorization": f"Bearer {key}"}


@dataclass(frozen=True, slots=True)
class AnswerTiming:
    """One answer: seconds to its first characters, seconds in total, and tokens."""

    first_token_seconds: float
    seconds: float
    tokens: int


@dataclass(slots=True)
class LoadResult:
    """The results of all requests.

    Attributes:
        answers: the complete answers.
        unfinished: the chunks received of each unfinished answer, each of at least one token.
        errors: errors in the protocol's format, and broken connections, by message.
        malformed: all other failures, by message.
        seconds: from the first question to the last answer.
    """

    answers: list[AnswerTiming] = field(default_factory=list)
    unfinished: dict[int, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of all answers, including unfinished ones."""
        return sum(each.tokens for each in self.answers) + sum(self.unfinished.values())

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def first_token_quantile(self, share: float) -> float:
        """Return the quantile of the seconds to the first characters."""
        ordered = sorted(each.first_token_seconds for each in self.answers)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def run_clients(
    target: Target,
    questions: Sequence[Question],
    *,
    clients: int,
    seconds: float,
    pause_after_errors: bool = False,
    drain: float = DRAIN,
) -> LoadResult:
    """Run concurrent clients, each of which sends the next question when its last one is answered.

    Args:
        target: the server.
        questions: the questions, repeated as needed.
        clients: the number of clients.
        seconds: how long new questions are sent; each client sends at least one.
        pause_after_errors: wait one second after an error.
        drain: seconds to wait for the last answers; later ones count as unfinished.
    """
    result, numbers = LoadResult(), count()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
    start = perf_counter()

    async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as http:

        async def client() -> None:
            while True:
                number = next(numbers)
                has_answer = await _ask(http, target, questions[number % len(questions)], result, number)
                if not has_answer and pause_after_errors:
                    await asyncio.sleep(1)
                if perf_counter() - start >= seconds:
                    return

        tasks = [asyncio.create_task(client()) for _ in range(clients)]
        _, late = await asyncio.wait(tasks, timeout=seconds + drain)
        for each in late:
            each.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
    result.seconds = perf_counter() - start
    return result


async def _ask(http: httpx.AsyncClient, target: Target, question: Question, result: LoadResult, number: int) -> bool:
    result.unfinished[number] = 0
    try:
        result.answers.append(await _read_answer(http, target, question, result.unfinished, number))
    except _ProtocolError as error:
        result.errors[str(error)] += 1
    except httpx.TransportError as error:  # the connection failed or broke
        result.errors[type(error).__name__] += 1
    except (ValueError, KeyError) as error:
        result.malformed[f"{type(error).__name__}: {error}"] += 1
    else:
        del result.unfinished[number]
        return True
    del result.unfinished[number]
    return False


class _ProtocolError(Exception):
    """An error in the protocol's format."""


async def _read_answer(
    http: httpx.AsyncClient, target: Target, question: Question, unfinished: dict[int, int], number: int
) -> AnswerTiming:
    start, first, tokens = perf_counter(), 0.0, 0
    url, body = f"{target.url}/v1/chat/completions", target.body(question)
    async with http.stream("POST", url, json=body, headers=target.headers(number)) as response:
        if response.status_code != 200:
            _raise_error(json.loads(await response.aread()), response.status_code)
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                _raise_error(event, 200)
            if _has_content(event):
                first = first or perf_counter() - start
                unfinished[number] += 1
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    if not tokens:
        raise ValueError("the stream ended without usage")
    seconds = perf_counter() - start
    return AnswerTiming(first or seconds, seconds, tokens)


def _has_content(event: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in event["choices"])


def _raise_error(body: Any, status: int) -> None:
    error = body["error"]
    if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys():
        raise ValueError(f"{status} without an error in the protocol's format")
    raise _ProtocolError(f"{status} {error['code'] or error['type']}")
