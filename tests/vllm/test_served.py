"""The plug-in in a real `vllm serve` on SmolLM2: run by `make test-vllm`, which says where vLLM is."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import openai
import pytest
import torch
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.accel import RemoteLanguageModel
from antiphon.accel.remote.errors import ModelNotFoundError, RequestRejectedError
from antiphon.integrations.vllm import references_for
from antiphon.pipelines import resolve_model
from tests.chi_square import p_value
from tests.vllm.served import Served, serve

pytestmark = [
    pytest.mark.skipif("ANTIPHON_VLLM" not in os.environ, reason="needs an environment of vLLM's own: make test-vllm"),
    pytest.mark.timeout(1800),
]
SPECULATION = {"method": "custom_class", "model": "tests.vllm.watched.Watched", "num_speculative_tokens": 12}
ACCEPTED, DRAFTED = "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"
PREEMPTED = "vllm:num_preemptions_total"
BLOCKS = ("--block-size", "32", "--num-gpu-blocks-override", "40")
"""Sixteen short requests have one each; of longer ones that begin with four, not all can end at once."""
TOPICS = ("bees", "keys", "rivers", "bread", "clocks", "maps", "stone", "letters", "winter", "glass")
ASKED = [
    f"List {number} about {topic}:\n" for topic in TOPICS for number in ("one", "two", "three", "four", "five", "six")
]
WORDS = 12
HONEY = "Which animals make honey?"
COLOURS = (
    "I like each of them and would paint my house in any of them; but if I am asked, there is an order. "
    "My favourite colours, in order:"
)
KINDS = (" red", " blue", " green")
"""One token each: the small vocabulary of what is sampled."""

DRAWS, PART, ODDS = 500, 250, 1e-6


def asking(served: Served) -> RemoteLanguageModel:
    return RemoteLanguageModel(served.url, timeout=900)


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server with the plug-in, which starts while another one does: most of that keeps one core busy."""
    told = ("--speculative-config", json.dumps(SPECULATION), "--per-request-spec-decode-metrics", "detailed")
    with serve(resolve_model("smollm2"), tmp_path_factory.mktemp("drafting"), *told, *BLOCKS) as running:
        yield running
        assert not running.watch.exists(), running.watch.read_text("utf-8")


@pytest.fixture(scope="module")
def plain_texts(tmp_path_factory: pytest.TempPathFactory, starting: Served) -> list[str]:
    """What vLLM says to sixty prompts without any drafts."""
    with serve(resolve_model("smollm2"), tmp_path_factory.mktemp("plain")) as plain:
        asked = asking(plain.wait())
        return [each.text for each in asked.generate_batch(ASKED, batch_size=8, max_new_tokens=WORDS)]


@pytest.fixture(scope="module")
def served(starting: Served, plain_texts: list[str]) -> Served:
    """The server with the plug-in; ``plain_texts`` come first, so that it is asked alone."""
    return starting.wait()


def test_its_log_says_that_it_is_active(served: Served) -> None:
    assert "Antiphon drafts from prompts, references and predictions, up to 12 tokens a step" in served.log.read_text()


@pytest.mark.parametrize("batch_size", [1, 8])
def test_every_text_is_that_of_the_same_vllm_without_drafts(
    served: Served, plain_texts: list[str], batch_size: int
) -> None:
    """The references are right for every other prompt, and those of another one for the rest."""
    shares = [[ASKED[at] + plain_texts[at - at % 2]] for at in range(len(ASKED))]
    said = asking(served).generate_batch(ASKED, references=shares, batch_size=batch_size, max_new_tokens=WORDS)
    assert [each.text for each in said] == plain_texts
    right = sum(each.steps.steps for each in said[::2])
    assert right < WORDS * len(said[::2]) / 2, "right references save most steps"


def by_openai(served: Served, prompt: str, body: dict[str, Any]) -> None:
    client = openai.OpenAI(base_url=served.url, api_key="none", timeout=900)
    message: Any = {"role": "user", "content": prompt}
    client.chat.completions.create(
        model="smollm2", messages=[message], max_tokens=WORDS, temperature=0, extra_body=body
    )


def by_langchain(served: Served, prompt: str, body: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"base_url": served.url, "api_key": "none", "temperature": 0, "max_tokens": WORDS}
    ChatOpenAI(model="smollm2", timeout=900, extra_body=body, **settings).invoke(prompt)


def by_llama_index(served: Served, prompt: str, body: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"api_base": served.url, "api_key": "none", "temperature": 0, "max_tokens": WORDS}
    model = OpenAILike(
        model="smollm2", is_chat_model=True, timeout=900, additional_kwargs={"extra_body": body}, **settings
    )
    model.complete(prompt)


def by_curl(served: Served, prompt: str, body: dict[str, Any]) -> None:
    message = {"role": "user", "content": prompt}
    asked = {"model": "smollm2", "messages": [message], "max_tokens": WORDS, "temperature": 0} | body
    url, told = f"{served.url}/chat/completions", "Content-Type: application/json"
    subprocess.run(["curl", "-sSf", url, "-H", told, "-d", json.dumps(asked)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def honey(served: Served) -> str:
    """What is said to `HONEY`."""
    return asking(served).generate([{"role": "user", "content": HONEY}], max_new_tokens=WORDS).text


@pytest.mark.parametrize("ask", [by_openai, by_langchain, by_llama_index, by_curl])
def test_what_any_client_sends_arrives_in_the_drafter(
    served: Served, honey: str, ask: Callable[[Served, str, dict[str, Any]], None]
) -> None:
    bodies = {"nothing": {}, "references": references_for([honey]), "prediction": references_for([], prediction=honey)}
    accepted = {}
    for name, body in bodies.items():
        before = served.counter(ACCEPTED)
        ask(served, HONEY, body)
        accepted[name] = served.counter(ACCEPTED) - before
    assert min(accepted["references"], accepted["prediction"]) > accepted["nothing"] + WORDS // 3, accepted


def test_sixteen_at_once_are_each_drafted_from_their_own(served: Served, plain_texts: list[str]) -> None:
    """The same sixteen with no references, with their own ones, and with those of their neighbour."""
    own = [[prompt + text] for prompt, text in zip(ASKED, plain_texts, strict=True)][:16]
    accepted = []
    for references in ([()] * 16, own, own[1:] + own[:1]):
        said = asking(served).generate_batch(ASKED[:16], references=references, batch_size=16, max_new_tokens=WORDS)
        assert [each.text for each in said] == plain_texts[:16]
        accepted.append([each.steps.accepted for each in said])
    without, with_own, with_others = accepted
    assert all(own >= none for own, none in zip(with_own, without, strict=True)), accepted
    assert sum(with_own) > sum(without) + 16 * WORDS // 3, accepted
    assert sum(with_own) > 1.5 * sum(with_others), accepted


def test_forty_tenants_some_of_whom_go_away_and_some_of_whom_wait(served: Served) -> None:
    """Each has a secret; the watched proposer notes any draft that is not from the request's own texts."""
    client = openai.OpenAI(base_url=served.url, api_key="none", timeout=900)
    before = served.counter(PREEMPTED), served.counter(DRAFTED)

    def ask(tenant: int) -> int:
        secret = f"The code of tenant {tenant} is {tenant * 7919} and nobody else may have {tenant * 104729}. "
        told: dict[str, Any] = {"model": "smollm2", "prompt": f"Repeat: {secret * 4}\n", "max_tokens": 48}
        body = references_for([secret * 2]) | {"ignore_eos": True}
        with client.completions.create(**told, temperature=0, stream=True, extra_body=body) as stream:
            pieces = stream if tenant % 4 else islice(stream, 1)  # every fourth one goes away at once
            return sum(1 for _ in pieces)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(40)))
    assert served.counter(PREEMPTED) > before[0], "nobody had to wait"
    assert served.counter(DRAFTED) > before[1] + 400
    assert not served.watch.exists()


def exact_law(prompt: list[int], kinds: list[int]) -> dict[tuple[int, ...], float]:
    """The probability of every text of three of these tokens, by plain forwards of transformers."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("smollm2"), dtype=torch.float32)
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        with torch.no_grad():
            scores = model(torch.tensor([[*prompt, *text] for text in texts])).logits[:, -1, kinds].double()
        shares = scores.softmax(-1).tolist()
        texts = {
            (*text, token): p * share
            for (text, p), row in zip(texts.items(), shares, strict=True)
            for token, share in zip(kinds, row, strict=True)
        }
    return texts


def test_what_is_sampled_with_drafts_has_the_law_of_plain_sampling(served: Served) -> None:
    """Texts of three tokens of three kinds; whatever the first is, a reference says a likely end of it."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("smollm2"))
    prompt = tokenizer.encode(COLOURS)
    names = {token: kind for kind in KINDS for token in tokenizer.encode(kind)}
    law = exact_law(prompt, list(names))
    ends = [text for text in law if text[1] != text[2]]
    references = [max((text for text in ends if text[0] == token), key=law.__getitem__) for token in names]
    flat = [token for text in references for token in (*prompt[-8:], *text, -1)]
    body: dict[str, Any] = {"allowed_token_ids": list(names), "vllm_xargs": {"references": flat}}
    client = openai.OpenAI(base_url=served.url, api_key="none", timeout=900)
    seen: Counter[tuple[int, ...]] = Counter()
    before = served.counter(ACCEPTED), served.counter(DRAFTED)
    for _ in range(DRAWS // PART):
        said = client.completions.create(
            model="smollm2", prompt=prompt, n=PART, max_tokens=3, temperature=1.0, extra_body=body
        )
        seen.update(tuple(tokenizer.encode(choice.text)) for choice in said.choices)
    accepted, drafted = served.counter(ACCEPTED) - before[0], served.counter(DRAFTED) - before[1]
    assert accepted > DRAWS / 10, "hardly any draft was accepted, so this says nothing"
    assert drafted - accepted > DRAWS / 10, "hardly any draft was refused, so this says nothing"
    p = p_value(law, seen)
    assert p > ODDS, f"p is {p:.2g}; an engine that is right fails once in {1 / ODDS:,.0f} runs"


def test_what_cannot_be_read_is_refused_at_the_door(served: Served) -> None:
    client = openai.OpenAI(base_url=served.url, api_key="none", timeout=900)
    with pytest.raises(openai.BadRequestError, match="give a list of texts, or a flat list of token ids"):
        client.completions.create(model="smollm2", prompt="a", extra_body={"vllm_xargs": {"references": 0}})
    with pytest.raises(RequestRejectedError, match="one request may bring 256"):
        asking(served).generate("a", references=["b"] * 300)
    with pytest.raises(ModelNotFoundError, match="it has 'smollm2'"):
        RemoteLanguageModel(served.url, "other").generate("a")
