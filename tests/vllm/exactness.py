"""Random requests to a vLLM server with the plug-in and to one without, and the comparison of their answers.

Both servers decode greedily in float32, many requests at once. Some clients of the server with the plug-in disconnect,
and its KV cache is so small that requests are preempted. Texts, token ids, finish reasons, usage and log-probabilities
must be equal.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from itertools import zip_longest
from random import Random
from typing import Any
from urllib.parse import urlsplit

from tests.vllm.fuzz import post, shown
from tests.vllm.server import Server

AT_ONCE = 16
TOLERANCE = 1e-3
"""Largest difference of log-probabilities: batches of other sizes are summed in another order."""

IGNORED = ("id", "created", "system_fingerprint", "metrics", "spec_decode_metrics")
"""Fields of an answer that differ from run to run."""

TOPICS = ("bees", "keys", "rivers", "bread", "clocks", "maps", "stone", "letters")
PASSAGE = (
    "{topic} were counted in {number} places. Nobody knows why {topic} are where they are, and {number} is a guess."
)
TASKS = (
    "Repeat: {passage} {passage}\n",
    "{passage} In short,",
    "List five {topic}:\n1.",
    "{passage} {passage} In other words,",
)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def with_grammar(chance: Random) -> dict[str, Any]:
    """Return a structured output, which the references of most requests violate."""
    grammars: list[dict[str, Any]] = [
        {"json": PERSON},
        {"choice": ["were counted in", "were counted by", "are"]},
        {"regex": r"[a-z]{3,8}( [a-z]{2,9}){2,6}\."},
    ]
    return {"structured_outputs": chance.choice(grammars)}


def with_stop(chance: Random) -> dict[str, Any]:
    """Return conditions that end a text, or keep it from ending."""
    stops: list[dict[str, Any]] = [
        {"stop": [" in", "."], "include_stop_str_in_output": chance.random() < 0.5},
        {"stop": "were counted", "min_tokens": chance.choice([0, 3, 9])},
        {"stop_token_ids": [chance.choice([28, 30, 260, 281]), 198], "min_tokens": chance.choice([0, 5])},
        {"ignore_eos": True, "max_tokens": 40},
        {"min_tokens": 20, "max_tokens": 32},
    ]
    return chance.choice(stops)


def with_penalty(chance: Random) -> dict[str, Any]:
    """Return penalties, which change the model's choice by the text so far."""
    penalties: list[dict[str, Any]] = [
        {"repetition_penalty": chance.choice([1.1, 1.5])},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"bad_words": [" places", " why"]},
        {"allowed_token_ids": list(range(1000))},
    ]
    return chance.choice(penalties)


def with_long_answer(chance: Random) -> dict[str, Any]:
    """Return the length of an answer that needs several blocks of the KV cache, so that requests are preempted."""
    return {"ignore_eos": True, "max_tokens": chance.choice([100, 120])}


PARTS = (
    (),
    (with_long_answer,),
    (with_long_answer,),
    (with_stop,),
    (with_stop,),
    (with_penalty,),
    (with_grammar,),
    (with_stop, with_penalty),
)


def make_request(seed: int, number: int) -> dict[str, Any]:
    """Return the body of a request without references."""
    chance = Random(f"{seed}-{number}")
    topic = chance.choice(TOPICS)
    passage = PASSAGE.format(topic=topic.title(), number=chance.randrange(2, 999))
    body: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_tokens": chance.choice([12, 16, 32, 48])}
    body |= {"prompt": chance.choice(TASKS).format(passage=passage, topic=topic), "return_token_ids": True}
    body |= {"logprobs": chance.choice([None, 1, 3])}
    if chance.random() < 0.4:  # several answers have to be sampled; from one token each they are greedy, too
        body |= {"n": chance.choice([2, 3]), "temperature": 1.0, "top_k": 1}
    for part in chance.choice(PARTS):
        body.update(part(chance))
    return body


def with_references(seed: int, number: int, body: dict[str, Any], answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a request with references or a prediction: its own answer, another one, or a text that does not fit."""
    chance = Random(f"{seed}-{number}-references")
    own, other = (answers[each]["choices"][0]["text"] for each in (number, chance.randrange(len(answers))))
    sources: list[dict[str, Any]] = [
        {"references": [body["prompt"] + own]},
        {"references": [own, other]},
        {"references": [other, f'{{"name": "{body["prompt"][:20]}", "age": "old"}}']},
        {"prediction": own},
        {"prediction": f"{own[: len(own) // 2]} {other}"},
        {"prediction": answers[number]["choices"][0]["token_ids"]},
        {},
    ]
    chosen = chance.choice(sources)
    return body | ({"vllm_xargs": chosen} if chosen else {})


def ask_all(server: Server, bodies: Sequence[dict[str, Any]], *, aborting: bool = False) -> list[dict[str, Any]]:
    """Return the answers of a server, which gets several requests at once.

    Raises:
        RuntimeError: A request was not answered with 200.
    """

    def ask(number: int) -> dict[str, Any]:
        if aborting and number % 3 == 0:
            disconnect_early(server, bodies[number])
        status, answer = post(server, "/v1/completions", bodies[number])
        if status != 200:
            raise RuntimeError(
                f"request {number} was answered with {status}: {answer[:300]!r}: {shown('', bodies[number])}"
            )
        found: dict[str, Any] = json.loads(answer)
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, range(len(bodies))))


def disconnect_early(server: Server, body: dict[str, Any]) -> None:
    """Send a request, read the beginning of the stream, and close the connection."""
    address = urlsplit(server.url)
    with closing(HTTPConnection(str(address.hostname), address.port, timeout=120)) as connection:
        header = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True, "max_tokens": 60}), header)
        connection.getresponse().read(1)


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield where two answers differ, except in `IGNORED` and in the last digits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys() - set(IGNORED)):
            if key not in IGNORED:
                yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list):
        for index, (left, right) in enumerate(zip_longest(one, other)):
            yield from differences(left, right, f"{path}[{index}]")
    elif isinstance(one, float) and isinstance(other, float):
        if abs(one - other) > TOLERANCE:
            yield f"{path}: {one} and {other}"
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"


def compare(
    requests: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]], drafted: Sequence[dict[str, Any]]
) -> list[str]:
    """Return a line for each request whose answers differ."""
    lines = []
    for number, (request, one, other) in enumerate(zip(requests, plain, drafted, strict=True)):
        if found := list(differences(one, other)):
            lines.append(f"request {number}: {'; '.join(found[:3])}: {shown('', request)}")
    return lines
