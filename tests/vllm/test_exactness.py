"""Answers of a vLLM server with the plug-in equal those of one without; `python -m tests.vllm.exactness` sends more."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.vllm.conftest import EXACT_REQUESTS, EXACT_SEED
from tests.vllm.exactness import ask_all, compare, differences, make_request, with_references
from tests.vllm.fuzz import post
from tests.vllm.server import Server

pytestmark = [
    pytest.mark.skipif("ANTIPHON_VLLM" not in os.environ, reason="needs an environment of vLLM's own: make test-vllm"),
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("server"),
]


def test_texts_ids_logprobs_and_usage_equal_those_without_the_plugin(
    server: Server, plain: tuple[list[str], list[dict[str, Any]]]
) -> None:
    """Stop conditions, penalties, grammars and several answers; some clients disconnect meanwhile."""
    expected, accepted = plain[1], "vllm:spec_decode_num_accepted_tokens_total"
    requests = [
        with_references(EXACT_SEED, number, make_request(EXACT_SEED, number), expected)
        for number in range(EXACT_REQUESTS)
    ]
    before = server.counter(accepted)
    found = ask_all(server, requests, aborting=True)
    assert compare(requests, expected, found) == []
    num_tokens = sum(each["usage"]["completion_tokens"] for each in found)
    assert server.counter(accepted) - before > num_tokens / 4, "too few drafts were accepted for this test to mean much"


@pytest.mark.parametrize("parameters", [{"logit_bias": {"7": 5.0}}, {"min_p": 0.1, "temperature": 1.0}])
def test_parameters_that_vllm_refuses_with_any_speculation_are_answered_with_400(
    server: Server, parameters: dict[str, Any]
) -> None:
    body = {"model": "smollm2", "prompt": "a", "max_tokens": 2, "temperature": 0} | parameters
    status, answer = post(server, "/v1/completions", body)
    assert status == 400, answer
    assert next(iter(parameters)) in json.loads(answer)["error"]["message"]


def test_the_comparison_finds_every_kind_of_difference() -> None:
    one = {"id": 1, "choices": [{"text": "a", "logprobs": {"token_logprobs": [-1.0, None]}, "token_ids": [1, 2]}]}
    same = {"id": 2, "choices": [{"text": "a", "logprobs": {"token_logprobs": [-1.0001, None]}, "token_ids": [1, 2]}]}
    assert not list(differences(one, same))
    other = {"choices": [{"text": "b", "logprobs": {"token_logprobs": [-1.1]}, "token_ids": [1, 2, 3], "more": 0}]}
    assert list(differences(one, other)) == [
        ".choices[0].logprobs.token_logprobs[0]: -1.0 and -1.1",
        ".choices[0].more: None and 0",
        ".choices[0].text: 'a' and 'b'",
        ".choices[0].token_ids[2]: None and 3",
    ]
