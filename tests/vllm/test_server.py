"""The plug-in in a real `vllm serve` of SmolLM2; `make test-vllm` names vLLM's command in ANTIPHON_VLLM."""

import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import openai
import pytest
import torch
from langchain_openai import ChatOpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.accel import LanguageModel, RemoteLanguageModel, resolve_model
from antiphon.accel.remote.errors import RemoteError
from antiphon.integrations.vllm import references_for
from tests.chi_square import p_value
from tests.vllm.conftest import EXACT_REQUESTS, EXACT_SEED, MAX_NEW_TOKENS
from tests.vllm.exactness import ask_all, compare, differences, make_request, with_references
from tests.vllm.fuzz import VOCAB_SIZE, find_failure, post
from tests.vllm.server import ACCEPTED, DRAFTED, PREEMPTED, Server, openai_client

pytestmark = [
    pytest.mark.skipif("ANTIPHON_VLLM" not in os.environ, reason="needs an environment of vLLM's own: make test-vllm"),
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("server"),  # one process, so that all tests share the servers
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


COLOURS = (
    "I like each of them and would paint my house in any of them; but if I am asked, there is an order. "
    "My favourite colours, in order:"
)
COLOUR_TOKENS = (" red", " blue", " green")
"""Words of one token each, from which the tests sample."""

SAMPLES, SAMPLES_PER_REQUEST, FALSE_ALARM = 500, 250, 1e-6
MALFORMED_REQUESTS = int(os.environ.get("VLLM_REQUESTS", "20"))


def test_drafts_of_forty_tenants_stay_separate_under_preemption_and_aborts(drafting_server: Server) -> None:
    """Each tenant has a secret; `CheckedProposer` records any draft that is not from the request's own texts."""
    client = openai_client(drafting_server)
    before = drafting_server.counter(PREEMPTED), drafting_server.counter(DRAFTED)

    def ask(tenant: int) -> int:
        secret = f"The code of tenant {tenant} is {tenant * 7919} and nobody else may have {tenant * 104729}. "
        request: dict[str, Any] = {"model": "smollm2", "prompt": f"Repeat: {secret * 4}\n", "max_tokens": 48}
        body = references_for([secret * 2]) | {"ignore_eos": True}
        with client.completions.create(**request, temperature=0, stream=True, extra_body=body) as stream:
            pieces = stream if tenant % 4 else islice(stream, 1)  # every fourth client disconnects
            return sum(1 for _ in pieces)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(40)))
    assert drafting_server.counter(PREEMPTED) > before[0], "no request was preempted"
    assert drafting_server.counter(DRAFTED) > before[1] + 400
    assert not drafting_server.violations.exists()


def exact_distribution(prompt: list[int], tokens: list[int]) -> dict[tuple[int, ...], float]:
    """Return the probability of every text of three of these tokens, from forward passes of transformers."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("smollm2"), dtype=torch.float32)
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *text] for text in texts])).logits[:, -1, tokens].double()
        probabilities = logits.softmax(-1).tolist()
        texts = {
            (*text, token): p * q
            for (text, p), row in zip(texts.items(), probabilities, strict=True)
            for token, q in zip(tokens, row, strict=True)
        }
    return texts


def test_sampling_with_drafts_follows_the_exact_distribution(drafting_server: Server) -> None:
    """Texts of three colours; for each first colour, a reference holds a likely continuation."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("smollm2"))
    prompt = tokenizer.encode(COLOURS)
    names = {token: colour for colour in COLOUR_TOKENS for token in tokenizer.encode(colour)}
    expected = exact_distribution(prompt, list(names))
    ends = [text for text in expected if text[1] != text[2]]
    references = [max((text for text in ends if text[0] == token), key=expected.__getitem__) for token in names]
    flat = [token for text in references for token in (*prompt[-8:], *text, -1)]
    body: dict[str, Any] = {"allowed_token_ids": list(names), "vllm_xargs": {"references": flat}}
    client = openai_client(drafting_server)
    seen: Counter[tuple[int, ...]] = Counter()
    before = drafting_server.counter(ACCEPTED), drafting_server.counter(DRAFTED)
    for _ in range(SAMPLES // SAMPLES_PER_REQUEST):
        answer = client.completions.create(
            model="smollm2", prompt=prompt, n=SAMPLES_PER_REQUEST, max_tokens=3, temperature=1.0, extra_body=body
        )
        seen.update(tuple(tokenizer.encode(choice.text)) for choice in answer.choices)
    accepted, drafted = drafting_server.counter(ACCEPTED) - before[0], drafting_server.counter(DRAFTED) - before[1]
    assert accepted > SAMPLES / 10, "too few drafts were accepted for this test to mean anything"
    assert drafted - accepted > SAMPLES / 10, "too few drafts were rejected for this test to mean anything"
    p = p_value(expected, seen)
    assert p > FALSE_ALARM, f"p is {p:.2g}; a correct engine fails once in {1 / FALSE_ALARM:,.0f} runs"


def test_the_server_survives_malformed_requests(drafting_server: Server) -> None:
    statuses = Counter[int]()
    assert find_failure(drafting_server, range(MALFORMED_REQUESTS), 1, statuses) is None
    assert min(statuses[200], statuses[400]) > MALFORMED_REQUESTS / 5, statuses
    assert drafting_server.is_healthy()
