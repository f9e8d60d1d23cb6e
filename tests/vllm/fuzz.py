"""Malformed requests to a real vLLM server: after each of them it must answer an ordinary request as before."""

import json
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import Any
from urllib.parse import urlsplit

import typer

from tests.vllm.server import Server

SPECULATION = {
    "method": "custom_class",
    "model": "tests.vllm.checked_proposer.CheckedProposer",
    "num_speculative_tokens": 12,
}
VOCAB_SIZE = 49_152
TIMEOUT = 120.0
PRINTED = 200

NAN, INF = float("nan"), float("inf")
NUMBERS: list[Any] = [
    *(0, 1, -1, -2, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400),
    *(0.5, -0.5, 1e308, NAN, INF, -INF),
]
TEXTS = ["", "a", "\ud800", "a\udfff", "\x00", "\u202e", "<|endoftext|>", "<|im_start|>" * 20, "x" * 3_000]
LISTS: list[Any] = [[], [[]], [[1, 2], [3]], [None], [True], ["a", 1], [1, 0.5], [NAN], {}, {"a": 1}]
JUNK: list[Any] = [None, True, False, *NUMBERS, *TEXTS, *LISTS]

PARAMETERS = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"),
    *("stop", "stop_token_ids", "bad_words", "allowed_token_ids", "logprobs", "prompt_logprobs", "top_logprobs"),
    *("min_tokens", "ignore_eos", "best_of", "logit_bias", "echo", "suffix", "skip_special_tokens", "stream"),
    *("include_stop_str_in_output", "truncate_prompt_tokens", "structured_outputs", "response_format", "priority"),
    *("thinking_token_budget", "return_token_ids", "kv_transfer_params", "cache_salt", "repetition_detection"),
    *("logprob_token_ids", "stream_options", "add_special_tokens", "user", "use_beam_search", "length_penalty"),
    *("spaces_between_special_tokens", "stream_interval", "request_id", "vllm_xargs", "prompt_embeds", "max_tokens"),
)
"""Request fields that get invalid values: all but ``n``, because vLLM would really compute thousands of answers."""


SCHEMAS: list[Any] = [
    *({}, {"type": "object"}, {"type": "nothing"}, {"$ref": "#"}, {"type": "string", "pattern": "("}, True, 1),
    {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
]
GRAMMARS: list[Any] = [
    *({}, {"choice": []}, {"choice": ["a", ""]}, {"choice": ["\ud800"]}, {"choice": ["a"], "regex": "a"}),
    *({"regex": "("}, {"regex": ""}, {"regex": "a*"}, {"json": {}}, {"json": "{"}, {"json_object": True}),
    *({"grammar": "root ::= "}, {"grammar": 'root ::= "a" root'}),
]


def valid_parameters(chance: Random) -> dict[str, Any]:
    """Return sampling parameters that vLLM accepts, at their limits and in unusual combinations."""
    penalty = chance.choice([-2.0, 2.0, 1e-30])
    choices: list[dict[str, Any]] = [
        {"top_k": chance.choice([1, 2, 50, VOCAB_SIZE, VOCAB_SIZE + 1, 2**31 - 1]), "temperature": 1.0},
        {"top_k": 5, "temperature": chance.choice([1e-9, 0.01, 2.0, 1e9, 1e38])},
        {"top_p": chance.choice([1e-12, 0.1, 0.9999999, 1.0]), "temperature": 1.0},
        {"temperature": 1.0, "seed": chance.choice([0, -1, 2**63 - 1, -(2**63)]), "n": chance.choice([1, 3])},
        {"presence_penalty": penalty, "frequency_penalty": -penalty, "temperature": chance.choice([0, 1])},
        {"repetition_penalty": chance.choice([1e-30, 0.5, 2.0, 1e30])},
        {"stop_token_ids": chance.choice([[], [7], [VOCAB_SIZE - 1]]), "min_tokens": 1},
        {"allowed_token_ids": chance.choice([[0], [7], [VOCAB_SIZE - 1], list(range(VOCAB_SIZE))])},
        {"bad_words": chance.choice([[], ["a"] * 1000, ["\x00"]])},
        {"stop": chance.choice([[], ["a"] * 1000, "\n"]), "ignore_eos": True},
    ]
    return {key: value for each in chance.sample(choices, chance.choice([1, 1, 2])) for key, value in each.items()}


def doubtful_parameters(chance: Random) -> dict[str, Any]:
    """Return sampling parameters of valid types that vLLM may refuse."""
    ids = chance.choice([[], [VOCAB_SIZE], [2**31], [2**63], [-1]])
    choices: list[dict[str, Any]] = [
        {"n": chance.choice([0, -1, 2**31]), "temperature": 1.0},
        {"stop_token_ids": ids, "min_tokens": chance.choice([0, 1, 3, 10**9])},
        {"allowed_token_ids": ids},
        {"logprob_token_ids": ids},
        {"logprobs": chance.choice([0, 1, 20, 21, 2**31]), "prompt_logprobs": chance.choice([0, 1, -1])},
        {"bad_words": chance.choice([[""], [" "]])},
        {"repetition_penalty": chance.choice([0, -1, NAN])},
        {"structured_outputs": chance.choice(GRAMMARS)},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": chance.choice(SCHEMAS)}}},
        {"logit_bias": chance.choice([{}, {"7": 5.0}, {str(VOCAB_SIZE): 1}, {"a": 1}, {"7": NAN}])},
    ]
    return chance.choice(choices)


def junk_parameter(chance: Random) -> dict[str, Any]:
    """Return a parameter of a random type."""
    return {chance.choice(PARAMETERS): chance.choice(JUNK)}


def valid_sources(chance: Random) -> dict[str, Any]:
    """Return references or a prediction that the plug-in accepts, at their limits."""
    pool: list[Any] = [
        *([7, VOCAB_SIZE - 1] * 5, [7, 0] * 5, [7, 8], [0] * 65_536, [], "a b " * 20_000, "", "7 7 7", "<|endoftext|>"),
    ]
    lists: list[Any] = [[-1, -1, -1], [-1], [7, -1, 8], [7, -1] * 200, ["a"] * 256, ["", ""], ["\x00", "\u202e"]]
    name = chance.choice(["references", "prediction"])
    return {"vllm_xargs": {name: chance.choice(pool if name == "prediction" else [*pool, *lists])}}


def bad_sources(chance: Random) -> dict[str, Any]:
    """Return ``vllm_xargs`` with a malformed, too large or reserved value."""
    bad = chance.choice([VOCAB_SIZE, VOCAB_SIZE + 1, 10**6, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**400, -2])
    pool: list[Any] = [
        *([7, bad] * 5, [bad], [7] * 65_537, [7, -1] * 300, ["a"] * 257, "ab" * 400_000, ["\ud800"], ["a", "\udc00b"]),
        *([7.0], [7, "a"], [7, None], [[7], [8]], chance.choice(JUNK)),
    ]
    given = {chance.choice(["references", "prediction"]): chance.choice(pool) for _ in range(chance.choice([1, 2]))}
    if chance.random() < 0.3:
        name = chance.choice(["antiphon", "unknown", "", "session_id", "kv_transfer_params"])
        given[name] = chance.choice([*pool, {"references": [[bad]], "prediction": []}])
    return {"vllm_xargs": given}


def make_request(seed: int, number: int) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request."""
    chance = Random(f"{seed}-{number}")
    body: dict[str, Any] = {"model": "smollm2", "max_tokens": chance.choice([1, 4, 4]), "temperature": 0}
    if is_chat := chance.random() < 0.3:
        body["messages"] = [{"role": "user", "content": "Count: 1, 2, 1, 2, 1, 2"}]
    else:
        body["prompt"] = chance.choice([[5, 6, 8, 9, 10], [7] * 20, "Count: 1, 2, 1, 2, 1, 2"])
    if chance.random() < 0.4:
        body["allowed_token_ids"] = [7]  # the answer is 7 7 7, so what follows a 7 in a reference is drafted
    for part in chance.choice(COMBINATIONS):
        body.update(part(chance))
    if chance.random() < 0.03:
        body["prompt"] = chance.choice([*JUNK, [VOCAB_SIZE], [-1], [7] * 5_000, [[7], [8, VOCAB_SIZE]]])
    return "/v1/chat/completions" if is_chat else "/v1/completions", body


COMBINATIONS: list[tuple[Callable[[Random], dict[str, Any]], ...]] = [
    *((valid_parameters,), (valid_sources,), (valid_sources, valid_parameters), (valid_sources, valid_parameters)),
    *((bad_sources,), (bad_sources,), (bad_sources, valid_parameters), (doubtful_parameters,), (junk_parameter,)),
    *((valid_sources, doubtful_parameters), (valid_sources, junk_parameter), (bad_sources, junk_parameter)),
]
"""Combinations of request parts; one is drawn for each request, and about half of them are valid."""


def post(server: Server, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Send a body, NaN and lone surrogates included, and return the status and the body of the answer."""
    address = urlsplit(server.url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=TIMEOUT)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ordinary_answer(server: Server) -> str:
    """Return the answer to an ordinary request with a reference.

    Raises:
        RuntimeError: The server did not answer it.
    """
    body = {"model": "smollm2", "prompt": "Bees make", "max_tokens": 3, "temperature": 0}
    status, answer = post(server, "/v1/completions", body | {"vllm_xargs": {"references": ["Bees make honey."]}})
    if status != 200:
        raise RuntimeError(f"an ordinary request was answered with {status}: {answer[:PRINTED]!r}")
    return str(json.loads(answer)["choices"][0]["text"])


def find_failure(server: Server, numbers: range, seed: int, statuses: Counter[int]) -> str | None:
    """Send the requests one by one; return the first failure and its request, or None."""
    expected = ordinary_answer(server)
    for number in numbers:
        path, body = make_request(seed, number)
        try:
            status, answer = post(server, path, body)
            statuses[status] += 1
            if status >= 500:
                typer.echo(f"request {number} is answered with {status}: {answer[:PRINTED]!r}: {shown(path, body)}")
            if (found := ordinary_answer(server)) != expected:
                raise RuntimeError(f"the next ordinary answer is {found!r}, not {expected!r}")
        except (OSError, HTTPException, RuntimeError) as error:
            return f"after request {number} of seed {seed}: {error!r}: {shown(path, body)}"
    return None


def shown(path: str, body: dict[str, Any]) -> str:
    """Return the path and the body of a request as one line, with long values shortened."""
    return f"{path} {_shortened(body)}"


def _shortened(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {_shortened(each)}' for key, each in value.items())}}}"
    text = json.dumps(value)
    return text if len(text) < PRINTED else f"{text[:PRINTED]}... ({len(text)} characters)"
