"""The plug-in in a real `vllm serve` on SmolLM2: run by `make test-vllm`, which says where vLLM is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]

from antiphon.accel import RemoteLanguageModel
from antiphon.accel.remote.errors import ModelMissingError, RefusedError
from antiphon.integrations.vllm import references_for
from antiphon.pipelines import resolve_model
from tests.vllm.served import Served, serve

pytestmark = [
    pytest.mark.skipif("ANTIPHON_VLLM" not in os.environ, reason="needs an environment of vLLM's own: make test-vllm"),
    pytest.mark.timeout(1800),
]
SPECULATION = {"method": "custom_class", "model": "tests.vllm.watched.Watched", "num_speculative_tokens": 12}
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
TOPICS = ("bees", "keys", "rivers", "bread", "clocks", "maps", "stone", "letters", "winter", "glass")
ASKED = [
    f"List {number} about {topic}:\n" for topic in TOPICS for number in ("one", "two", "three", "four", "five", "six")
]
WORDS = 16


def asking(served: Served) -> RemoteLanguageModel:
    return RemoteLanguageModel(served.url, timeout=900)


@pytest.fixture(scope="module")
def plain_texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What vLLM says to sixty prompts without any drafts, one after the other."""
    with serve(resolve_model("smollm2"), tmp_path_factory.mktemp("plain")) as served:
        return [each.text for each in asking(served).generate_batch(ASKED, batch_size=1, max_new_tokens=WORDS)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, plain_texts: list[str]) -> Iterator[Served]:
    """The server with the plug-in; ``plain_texts`` come first, so that two servers never run at once."""
    options = ("--speculative-config", json.dumps(SPECULATION), "--per-request-spec-decode-metrics", "detailed")
    with serve(resolve_model("smollm2"), tmp_path_factory.mktemp("drafting"), *options) as running:
        yield running
        assert not running.watch.exists(), running.watch.read_text("utf-8")


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


@pytest.mark.parametrize("ask", [by_openai, by_langchain, by_llama_index, by_curl])
@pytest.mark.parametrize("kind", ["references", "prediction"])
def test_what_any_client_sends_arrives_in_the_drafter(
    served: Served, ask: Callable[[Served, str, dict[str, Any]], None], kind: str
) -> None:
    prompt = "Which animals make honey?"
    said = asking(served).generate([{"role": "user", "content": prompt}], max_new_tokens=WORDS).text
    bodies: tuple[dict[str, Any], ...] = (
        {},
        references_for([said]) if kind == "references" else references_for([], prediction=said),
    )
    accepted = []
    for body in bodies:
        before = served.counter(ACCEPTED)
        ask(served, prompt, body)
        accepted.append(served.counter(ACCEPTED) - before)
    assert accepted[1] > accepted[0] + WORDS // 3


def test_sixteen_at_once_are_each_drafted_from_their_own(served: Served, plain_texts: list[str]) -> None:
    shares = [[prompt + text] for prompt, text in zip(ASKED, plain_texts, strict=True)][:16]
    said = asking(served).generate_batch(ASKED[:16], references=shares, batch_size=16, max_new_tokens=WORDS)
    assert [each.text for each in said] == plain_texts[:16]
    assert all(each.steps.accepted for each in said)


def test_forty_tenants_some_of_whom_go_away(served: Served) -> None:
    """Each has a secret; the watched proposer notes any draft that is not from the request's own texts."""
    model = asking(served)

    def ask(tenant: int) -> int:
        secret = f"The code of tenant {tenant} is {tenant * 7919} and nobody else may have {tenant * 104729}."
        with model.stream(f"Repeat: {secret}\n", references=[secret * 2], max_new_tokens=24) as stream:
            next(stream, None)
            if tenant % 4:  # every fourth one closes at once
                list(stream)
        return len(stream.completion.text)

    with ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(ask, range(40)))) == 40
    assert not served.watch.exists()


def test_what_cannot_be_read_is_refused_at_the_door(served: Served) -> None:
    client = openai.OpenAI(base_url=served.url, api_key="none", timeout=900)
    with pytest.raises(openai.BadRequestError, match="give a list of texts, or a flat list of token ids"):
        client.completions.create(model="smollm2", prompt="a", extra_body={"vllm_xargs": {"references": 0}})
    with pytest.raises(RefusedError, match="one request may bring 256"):
        asking(served).generate("a", references=["b"] * 300)
    with pytest.raises(ModelMissingError, match="it has 'smollm2'"):
        RemoteLanguageModel(served.url, "other").generate("a")
