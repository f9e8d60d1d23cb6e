"""Worker that runs one engine of vLLM in vLLM's own environment: reads jobs and writes measurements as lines of JSON.

It needs the standard library and vLLM only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pkgutil import resolve_name
from time import perf_counter
from typing import Any


@dataclass(slots=True)
class EngineAnswer:
    """Output of one request.

    Attributes:
        tokens: Emitted token ids.
        steps: Engine steps that emitted them, including the one that ended the prefill.
        drafted: Draft tokens of the request.
        first: Seconds to the first token.
    """

    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    drafted: int = 0
    first: float = 0.0


@dataclass(slots=True)
class Decoded:
    """Outputs of requests that were decoded together; times are seconds of the wall clock.

    Attributes:
        answers: One entry per request.
        seconds: Time until the last request has ended.
        decoding: Total time of the steps in which every running request already had its first token.
        emitted: Tokens emitted in those steps.
    """

    answers: list[EngineAnswer]
    seconds: float = 0.0
    decoding: float = 0.0
    emitted: int = 0


def decode_all(engine: Any, parameters: type, jobs: Sequence[Mapping[str, Any]], *, limit: int) -> Decoded:
    """Decode all jobs at once, greedily, until the last one has ended.

    Args:
        engine: vLLM's `LLMEngine`.
        parameters: vLLM's class `SamplingParams`.
        jobs: For each request a ``prompt`` in token ids and ``sources`` for our proposer.
        limit: Maximum number of new tokens per request.
    """
    decoded = Decoded([EngineAnswer() for _ in jobs])
    running = {f"{index} of {id(decoded)}": answer for index, answer in enumerate(decoded.answers)}
    started = now = perf_counter()
    for name, job in zip(tuple(running), jobs, strict=True):
        more = {"extra_args": job["sources"]} if job["sources"] else {}
        engine.add_request(
            name, {"prompt_token_ids": list(job["prompt"])}, parameters(temperature=0.0, max_tokens=limit, **more)
        )
    while running:
        is_prefill = not all(answer.tokens for answer in running.values())
        outputs, before = engine.step(), now
        now = perf_counter()
        emitted = sum(_note(running, output, now - started) for output in outputs)
        if not is_prefill:
            decoded.decoding += now - before
            decoded.emitted += emitted
    decoded.seconds = now - started
    return decoded


def _note(running: dict[str, EngineAnswer], output: Any, seconds: float) -> int:
    """Record a step's output for one request; return its number of new tokens."""
    answer, [out] = running[output.request_id], output.outputs
    count = len(out.token_ids) - len(answer.tokens)
    if count:
        answer.first = answer.first or seconds
        answer.tokens = list(out.token_ids)
        answer.steps += 1
    if output.finished:
        metrics = getattr(out, "spec_decode_metrics", None)
        answer.drafted = metrics.num_draft_tokens if metrics else 0
        del running[output.request_id]
    return count


def serve_lines() -> None:
    """Open the engine that the first line describes, then decode the jobs of each further line."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM also writes to standard output; send that to the log
    settings = json.loads(sys.stdin.readline())
    engine = resolve_name("vllm:LLMEngine").from_engine_args(resolve_name("vllm:EngineArgs")(**settings))
    parameters = resolve_name("vllm:SamplingParams")
    _send(replies, {"version": resolve_name("vllm:__version__")})
    for line in sys.stdin:
        request = json.loads(line)
        _send(replies, asdict(decode_all(engine, parameters, request["jobs"], limit=request["limit"])))


def _send(replies: Any, message: Mapping[str, Any]) -> None:
    replies.write(f"{json.dumps(message)}\n")
    replies.flush()


if __name__ == "__main__":
    serve_lines()
