"""The protocol of OpenAI: every parameter that its clients send is supported, ignored or refused as the page says."""

import inspect
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import BadRequestError, OpenAI
from openai.resources import Completions, Embeddings
from openai.resources.chat import Completions as ChatCompletions
from openai.resources.responses import Responses

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.request_schemas import (
    UNSUPPORTED,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
)
from antiphon.pipelines.server.responses_schema import STATEFUL, ResponseRequest
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder
from tests.table_part import part
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

MESSAGES: Any = [{"role": "user", "content": "How do bees live?"}]
WINDOW = 256


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A random model of bytes, most of which are no valid UTF-8."""
    return LanguageModel(tiny_model(max_position_embeddings=WINDOW), byte_tokenizer(), name="tiny")


@pytest.fixture(scope="module")
def http(model: LanguageModel) -> Iterator[TestClient]:
    settings = ServerSettings(max_output_tokens=1000)
    with TestClient(create_app(make_service(model, settings, name="tiny", embedder=HashEmbedder()))) as client:
        yield client


@pytest.fixture(scope="module")
def client(http: Any) -> OpenAI:
    return OpenAI(base_url="http://testserver/v1", api_key="none", http_client=http, max_retries=0)


def chat(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 12} | more)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_window_has_the_code_and_text_that_clients_know(
    client: OpenAI, stream: bool
) -> None:
    long = [{"role": "user", "content": "x" * 2 * WINDOW}]
    with pytest.raises(BadRequestError, match=f"maximum context length is {WINDOW} tokens") as raised:
        chat(client, messages=long, stream=stream)
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(BadRequestError, match=f"maximum context length is {WINDOW} tokens") as raised:
        client.completions.create(model="tiny", prompt="x" * 2 * WINDOW, stream=stream)
    assert raised.value.code == "context_length_exceeded"


LIMITS = [*product(("max_tokens", "max_completion_tokens"), (10_000, WINDOW, -1, None))]


@pytest.mark.parametrize(("name", "limit"), part(LIMITS, [LIMITS[0], LIMITS[3], LIMITS[5], LIMITS[6]]))
def test_a_limit_above_the_window_is_reduced_and_none_is_no_limit(client: OpenAI, name: str, limit: Any) -> None:
    given: dict[str, Any] = {"max_tokens": None} | {name: limit}
    usage = chat(client, **given, extra_body={"ignore_eos": True}).usage
    assert usage.total_tokens == WINDOW


@pytest.mark.parametrize("seed", [0, -1, 2**63, -(2**70), 2**80])
def test_any_integer_is_a_seed(client: OpenAI, seed: int) -> None:
    first, second = (chat(client, seed=seed, temperature=1.0, n=2).choices[index].message.content for index in range(2))
    again = chat(client, seed=seed, temperature=1.0).choices[0].message.content
    assert (first == again, first == second) == (True, False)


def test_end_tokens_of_a_request(client: OpenAI) -> None:
    plain = client.completions.create(model="tiny", prompt="Bees", max_tokens=12, extra_body={"return_token_ids": True})
    ids = plain.choices[0].model_dump()["token_ids"]
    fourth = next(token for token in ids if token not in ids[:3])
    place = ids.index(fourth)
    options: Any = {"return_token_ids": True, "stop_token_ids": [fourth]}
    ended = client.completions.create(model="tiny", prompt="Bees", max_tokens=12, extra_body=options).choices[0]
    assert ended.model_dump()["token_ids"] == ids[: place + 1]
    assert ended.finish_reason == "stop"
    assert ended.text == byte_tokenizer().decode(ids[:place], skip_special_tokens=True)
    longer = client.completions.create(
        model="tiny", prompt="Bees", max_tokens=40, extra_body={**options, "min_tokens": 20}
    )
    assert longer.usage is not None
    assert longer.usage.completion_tokens >= 20


@pytest.mark.parametrize(("name", "value"), [("min_tokens", 3), ("ignore_eos", True)])
def test_options_that_contradict_a_schema_are_refused_by_name(client: OpenAI, name: str, value: Any) -> None:
    with pytest.raises(BadRequestError) as raised:
        chat(client, response_format={"type": "json_object"}, extra_body={name: value}, max_tokens=30)
    assert (raised.value.param, name in str(raised.value)) == (name, True)


def test_echo_repeats_the_prompt_and_is_refused_with_logprobs(client: OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": ["Bees", "Ants"], "max_tokens": 6, "n": 2, "temperature": 1.0, "seed": 1}
    plain = [each.text for each in client.completions.create(**asked).choices]
    echoed = [each.text for each in client.completions.create(**asked, echo=True).choices]
    assert echoed == [prompt + text for prompt, text in zip(("Bees", "Bees", "Ants", "Ants"), plain, strict=True)]
    streamed = [""] * 4
    for chunk in client.completions.create(**asked, echo=True, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == echoed
    with pytest.raises(BadRequestError) as raised:
        client.completions.create(**asked, echo=True, logprobs=1)
    assert raised.value.param == "echo"


def joined(entries: Any) -> str:
    return b"".join(bytes(each.bytes or ()) for each in entries).decode(errors="replace")


@pytest.mark.parametrize("seed", range(2))
def test_the_bytes_of_logprobs_are_those_of_the_text(client: OpenAI, seed: int) -> None:
    asked: Any = {"temperature": 1.5, "seed": seed, "max_tokens": 40, "logprobs": True, "top_logprobs": 2}
    choice = chat(client, **asked).choices[0]
    assert joined(choice.logprobs.content) == choice.message.content
    assert {len(each.bytes) for each in choice.logprobs.content} <= {0, 1}, "a token of the byte tokenizer is one byte"
    chunks = [chunk.choices[0] for chunk in chat(client, **asked, stream=True)]
    streamed = [entry for each in chunks if each.logprobs for entry in each.logprobs.content or ()]
    assert [each.bytes for each in streamed] == [each.bytes for each in choice.logprobs.content]
    values = [each.logprob for each in choice.logprobs.content]
    assert [each.logprob for each in streamed] == pytest.approx(values, abs=1e-4)
    stop = choice.message.content[7:9]
    cut = chat(client, **asked, stop=[stop]).choices[0]
    assert joined(cut.logprobs.content) == cut.message.content


def test_text_offsets_continue_across_chunks(client: OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": "Bees", "max_tokens": 40, "logprobs": 2, "temperature": 1.5, "seed": 3}
    whole = client.completions.create(**asked).choices[0]
    assert whole.logprobs is not None
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    for name in ("tokens", "text_offset", "token_logprobs"):
        streamed = [value for each in chunks if each.logprobs for value in getattr(each.logprobs, name)]
        expected: Any = getattr(whole.logprobs, name)
        assert streamed == (pytest.approx(expected, abs=1e-4) if name == "token_logprobs" else expected)
    for token, offset in zip(whole.logprobs.tokens or (), whole.logprobs.text_offset or (), strict=True):
        assert token.startswith(("bytes:", "<")) or whole.text.startswith(token, offset)
    assert all(len(each) == 2 for each in whole.logprobs.top_logprobs or ())


def test_embeddings_refuse_input_that_would_be_cut_unless_the_client_allows_it(client: OpenAI) -> None:
    long = "bee " * 600
    with pytest.raises(
        BadRequestError, match=r"input\.1 has 600 tokens, and the maximum context length is 512"
    ) as raised:
        client.embeddings.create(model="tiny", input=["bee", long])
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")
    cut = client.embeddings.create(model="tiny", input=long, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.model_dump() == {"prompt_tokens": 512, "total_tokens": 512, "truncated_tokens": 88}
    with pytest.raises(BadRequestError, match="truncate_prompt_tokens is 10; only -1 is supported"):
        client.embeddings.create(model="tiny", input=long, extra_body={"truncate_prompt_tokens": 10})


PAGE = Path(__file__).parents[3] / "docs" / "api_parameters.md"
ENDPOINTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletions, ChatRequest, {"messages": [{"role": "user", "content": "Bees"}]}),
    "/v1/completions": (Completions, CompletionRequest, {"prompt": "Bees"}),
    "/v1/responses": (Responses, ResponseRequest, {"input": "Bees"}),
    "/v1/embeddings": (Embeddings, EmbeddingRequest, {"input": "Bees"}),
}
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def table(endpoint: str) -> dict[str, str]:
    """Return the status of each parameter of an endpoint in the docs."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n`{endpoint}`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (supported|ignored|refused) \|", section, re.MULTILINE)
    assert len(rows) == len(dict(rows)) == section.count("\n| `"), "every row has one of the three words"
    return dict(rows)


@pytest.fixture(scope="module")
def http_client() -> Iterator[TestClient]:
    model = LanguageModel(tiny_model(), byte_tokenizer(), name="tiny")
    with TestClient(create_app(make_service(model, ServerSettings(), name="tiny"))) as client:
        yield client


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_parameter_is_listed_with_what_the_server_does(endpoint: str) -> None:
    resource, schema, _ = ENDPOINTS[endpoint]
    listed, fields = table(endpoint), set(schema.model_fields)
    sent = set(inspect.signature(resource.create).parameters) - OF_THE_CLIENT
    assert sent | fields <= listed.keys()
    assert {name for name, status in listed.items() if status == "supported"} <= fields
    refused = {name for name, status in listed.items() if status == "refused"}
    assert refused <= {*UNSUPPORTED, *STATEFUL} - fields
    assert not {name for name, status in listed.items() if status == "ignored"} & {*UNSUPPORTED, *STATEFUL}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_refused_parameters_are_refused_by_name_and_ignored_ones_accepted(
    http_client: TestClient, endpoint: str
) -> None:
    body = {"model": "tiny", **ENDPOINTS[endpoint][2]}
    for name, status in table(endpoint).items():
        if status == "refused":
            response = http_client.post(endpoint, json=body | {name: "given"})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    fields = ENDPOINTS[endpoint][1].model_fields
    ignored = {name: "given" for name, status in table(endpoint).items() if status == "ignored" and name not in fields}
    if endpoint != "/v1/embeddings":
        limit = "max_output_tokens" if endpoint == "/v1/responses" else "max_tokens"
        assert http_client.post(endpoint, json=body | ignored | {limit: 1}).status_code == 200
