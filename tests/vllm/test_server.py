"""The plug-in in a real `vllm serve` of SmolLM2; `make test-vllm` names vLLM's command in ANTIPHON_VLLM."""

import json
import os
from collections.abc import Callable
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI

from antiphon.accel import LanguageModel, RemoteLanguageModel
from antiphon.accel.remote.errors import RemoteError
from antiphon.integrations.vllm import references_for
from tests.vllm.conftest import EXACT_REQUESTS, EXACT_SEED, MAX_NEW_TOKENS
from tests.vllm.exactness import ask_all, compare, differences, make_request, with_references
from tests.vllm.fuzz import VOCAB_SIZE, post
from tests.vllm.server import ACCEPTED, Server, openai_client

pytestmark = [
    pytest.mark.skipif("ANTIPHON_VLLM" not in os.environ, reason="needs an environment of vLLM's own: make test-vllm"),
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("server"),  # one process, so that both files share their servers
]
HONEY = "Which animals make honey?"


def remote_model(server: Server) -> RemoteLanguageModel:
    return RemoteLanguageModel(server.url, timeout=900)


def test_a_response_prefix_is_continued(server: Server) -> None:
    local = LanguageModel.from_pretrained("smollm2", dtype="float32", engine="torch")
    for prompt in (HONEY, [{"role": "user", "content": HONEY}]):
        options = {"response_prefix": "Animals that make", "max_new_tokens": MAX_NEW_TOKENS}
        assert remote_model(server).generate(prompt, **options).text == local.generate(prompt, **options).text  # type: ignore[arg-type]


def ask_with_openai(server: Server, prompt: str, body: dict[str, Any]) -> None:
    message: Any = {"role": "user", "content": prompt}
    openai_client(server).chat.completions.create(
        model="smollm2", messages=[message], max_tokens=MAX_NEW_TOKENS, temperature=0, extra_body=body
    )


def ask_with_langchain(server: Server, prompt: str, body: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"base_url": server.url, "api_key": "none", "temperature": 0}
    settings |= {"max_tokens": MAX_NEW_TOKENS}
    ChatOpenAI(model="smollm2", timeout=900, extra_body=body, **settings).invoke(prompt)


@pytest.fixture(scope="module")
def honey(server: Server) -> str:
    """The answer to `HONEY`."""
    message = {"role": "user", "content": HONEY}
    return remote_model(server).generate([message], max_new_tokens=MAX_NEW_TOKENS).text


@pytest.mark.parametrize("ask", [ask_with_openai, ask_with_langchain])
def test_references_and_predictions_of_every_client_reach_the_drafter(
    server: Server, honey: str, ask: Callable[[Server, str, dict[str, Any]], None]
) -> None:
    bodies = {"nothing": {}, "references": references_for([honey]), "prediction": references_for([], prediction=honey)}
    accepted = {}
    for name, body in bodies.items():
        before = server.counter(ACCEPTED)
        ask(server, HONEY, body)
        accepted[name] = server.counter(ACCEPTED) - before
    assert min(accepted["references"], accepted["prediction"]) > accepted["nothing"] + MAX_NEW_TOKENS // 3, accepted


def test_invalid_references_are_answered_with_400(server: Server) -> None:
    client = openai_client(server)
    with pytest.raises(openai.BadRequestError, match="give a list of texts, or a flat list of token ids"):
        client.completions.create(model="smollm2", prompt="a", extra_body={"vllm_xargs": {"references": 0}})
    with pytest.raises(RemoteError, match="one request may bring 256"):
        remote_model(server).generate("a", references=["b"] * 300)
    with pytest.raises(RemoteError, match="it has 'smollm2'"):
        RemoteLanguageModel(server.url, "other").generate("a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prediction": [7, VOCAB_SIZE] * 8}, f"{VOCAB_SIZE}; the model's vocabulary size is {VOCAB_SIZE}"),
        ({"references": [7, VOCAB_SIZE] * 8}, f"{VOCAB_SIZE}; the model's vocabulary size is {VOCAB_SIZE}"),
        ({"prediction": [7, 2**63] * 8}, f"{2**63}; the model's vocabulary size is {VOCAB_SIZE}"),
        ({"antiphon": [VOCAB_SIZE], "references": [7]}, "'antiphon' is a reserved key"),
        ({"references": ["\ud800"]}, "references holds a lone surrogate"),
    ],
)
def test_token_ids_that_would_end_the_engine_are_answered_with_400(
    server: Server, arguments: dict[str, Any], message: str
) -> None:
    """Every answer is 7 7 7, so a draft after a 7 is verified."""
    body = {"model": "smollm2", "prompt": [5, 6, 8, 9], "max_tokens": 4, "temperature": 0, "allowed_token_ids": [7]}
    status, answer = post(server, "/v1/completions", body | {"vllm_xargs": arguments})
    assert (status, json.loads(answer)["error"]["param"]) == (400, "vllm_xargs")
    assert message in json.loads(answer)["error"]["message"]
    status, _ = post(server, "/v1/completions", body | {"vllm_xargs": {"prediction": [7, VOCAB_SIZE - 1] * 8}})
    assert status == 200, "the largest token id of the vocabulary is valid, and the engine is alive"


def test_references_of_the_maximum_size_are_answered(server: Server, honey: str) -> None:
    message = {"role": "user", "content": HONEY}
    references = [f"{honey}{' and so on' * 21_500}"]
    answer = remote_model(server).generate([message], references=references, max_new_tokens=MAX_NEW_TOKENS)
    assert answer.text == honey
    assert answer.steps.steps < MAX_NEW_TOKENS


def test_texts_ids_logprobs_and_usage_equal_those_without_the_plugin(
    server: Server, plain: list[dict[str, Any]]
) -> None:
    """Stop conditions, penalties, grammars and several answers; some clients disconnect meanwhile."""
    requests = [
        with_references(EXACT_SEED, number, make_request(EXACT_SEED, number), plain) for number in range(EXACT_REQUESTS)
    ]
    before = server.counter(ACCEPTED)
    found = ask_all(server, requests, aborting=True)
    assert compare(requests, plain, found) == []
    num_tokens = sum(each["usage"]["completion_tokens"] for each in found)
    assert server.counter(ACCEPTED) - before > num_tokens / 4, "too few drafts were accepted for this test to mean much"


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
