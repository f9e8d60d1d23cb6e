"""One engine of vLLM, run in vLLM's own environment: prompts come in as lines of JSON, and what they took goes out.

Knows no method's name and no figures. It needs the standard library and vLLM alone.
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

MODULE = "antiphon.pipelines.benchmark.vllm_worker"
"""What an interpreter with vLLM is asked to run, by ``-m``."""


@dataclass(slots=True)
class EngineAnswer:
    """What one request said, and the steps of the engine that emitted it, the prompt's own included."""

    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    drafted: int = 0
    first: float = 0.0


@dataclass(slots=True)
class Decoded:
    """Some requests, decoded together; times are seconds of the wall clock.

    ``decoding`` and ``emitted`` are of steps in which every running request had its first token already.
    """

    answers: list[EngineAnswer]
    seconds: float = 0.0
    decoding: float = 0.0
    emitted: int = 0


def decode_all(engine: Any, parameters: type, jobs: Sequence[Mapping[str, Any]], *, limit: int) -> Decoded:
    """Decode all jobs at once and greedily, ``limit`` tokens at most, until the last one has ended.

    ``parameters`` is vLLM's class of a request's parameters.
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
        is_reading = not all(answer.tokens for answer in running.values())
        outputs, before = engine.step(), now
        now = perf_counter()
        emitted = sum(_note(running, output, now - started) for output in outputs)
        if not is_reading:
            decoded.decoding += now - before
            decoded.emitted += emitted
    decoded.seconds = now - started
    return decoded


def _note(running: dict[str, EngineAnswer], output: Any, seconds: float) -> int:
    """Take down what a step has brought for one request; how many tokens that is."""
    answer, [said] = running[output.request_id], output.outputs
    count = len(said.token_ids) - len(answer.tokens)
    if count:
        answer.first = answer.first or seconds
        answer.tokens = list(said.token_ids)
        answer.steps += 1
    if output.finished:
        told = getattr(said, "spec_decode_metrics", None)
        answer.drafted = told.num_draft_tokens if told else 0
        del running[output.request_id]
    return count


def serve_lines() -> None:
    """Open the engine that the first line describes, and decode what each further line holds."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM and its processes write to standard output too; that goes into the log
    settings = json.loads(sys.stdin.readline())
    engine = resolve_name("vllm:LLMEngine").from_engine_args(resolve_name("vllm:EngineArgs")(**settings))
    parameters = resolve_name("vllm:SamplingParams")
    _say(answers, {"version": resolve_name("vllm:__version__")})
    for line in sys.stdin:
        asked = json.loads(line)
        _say(answers, asdict(decode_all(engine, parameters, asked["jobs"], limit=asked["limit"])))


def _say(answers: Any, what: Mapping[str, Any]) -> None:
    answers.write(f"{json.dumps(what)}\n")
    answers.flush()


if __name__ == "__main__":
    serve_lines()
