"""Many requests to a real `vllm serve` with the plug-in: forty tenants, sampling, and malformed requests."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.accel import resolve_model
from antiphon.integrations.vllm import references_for
from tests.chi_square import p_value
from tests.vllm.fuzz import find_failure
from tests.vllm.server import ACCEPTED, DRAFTED, PREEMPTED, Server, openai_client

pytestmark = [
    pytest.mark.skipif("ANTIPHON_VLLM" not in os.environ, reason="needs an environment of vLLM's own: make test-vllm"),
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("server"),  # one process, so that both files share their servers
]
COLOURS = (
    "I like each of them and would paint my house in any of them; but if I am asked, there is an order. "
    "My favourite colours, in order:"
)
COLOUR_TOKENS = (" red", " blue", " green")
"""Words of one token each, from which the tests sample."""

SAMPLES, SAMPLES_PER_REQUEST, FALSE_ALARM = 500, 250, 1e-6
MALFORMED_REQUESTS = int(os.environ.get("VLLM_REQUESTS", "40"))


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
