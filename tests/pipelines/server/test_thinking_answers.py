"""Thinking over HTTP: apart from the content, in both protocols, whole and streamed; switched by known fields."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.accel import Conversation, RemoteLanguageModel
from antiphon.accel.remote.request_body import build_body
from antiphon.accel.remote.server import ServedModel
from antiphon.accel.text.parameters import Settings
from antiphon.pipelines.server.app import create_app
from tests.accel.thinking_models import QUESTION, thinking_tokenizer, writing
from tests.pipelines.server.conftest import tiny_service
from tests.pipelines.server.live_server import live_server
from tests.pipelines.server.test_chat_completions import events, post

OUTPUT = "<think>\nBees do.\n</think>\n\nSo it is."


@pytest.fixture(scope="module")
def client(index_folder: Path) -> Iterator[TestClient]:
    model = writing(thinking_tokenizer("decides"), OUTPUT)
    with TestClient(create_app(tiny_service(model, index_folder))) as client:
        yield client


def test_a_chat_answer_has_its_thinking_in_a_field_of_its_own(client: TestClient) -> None:
    found = post(client, "/v1/chat/completions", messages=QUESTION, logprobs=True)
    message = found["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Bees do.", "So it is.")
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(OUTPUT) - len("So it is.")
    tokens = [each["token"] for each in found["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens).startswith("So it is.")


def test_deltas_have_thinking_or_content(client: TestClient) -> None:
    options = {"continuous_usage_stats": True, "include_segments": True}
    streamed = events(client, "/v1/chat/completions", messages=QUESTION, stream_options=options)
    deltas = [each["choices"][0]["delta"] for each in streamed if each["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Bees do."
    assert "".join(delta.get("content", "") for delta in deltas) == "So it is."
    assert not any(delta.get("content") and delta.get("reasoning_content") for delta in deltas)
    segments = [segment["text"] for each in streamed for segment in each.get("segments", [])]
    assert "".join(segments) == "So it is."


def test_an_end_inside_the_thinking_is_reported(client: TestClient) -> None:
    [choice] = post(client, "/v1/chat/completions", messages=QUESTION, max_tokens=12)["choices"]
    assert (choice["finish_reason"], choice["ended_in_thinking"]) == ("length", True)
    assert choice["message"]["content"] == ""
    last = events(client, "/v1/chat/completions", messages=QUESTION, max_tokens=12)[-1]
    assert last["choices"][0]["ended_in_thinking"] is True


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False}},
        {"reasoning_effort": "none"},
        {"reasoning_effort": "minimal"},
    ],
)
def test_a_request_can_turn_thinking_off(client: TestClient, fields: dict[str, Any]) -> None:
    usual = post(client, "/v1/chat/completions", messages=QUESTION, max_tokens=1)["usage"]["prompt_tokens"]
    off = post(client, "/v1/chat/completions", messages=QUESTION, max_tokens=1, **fields)["usage"]["prompt_tokens"]
    assert off - usual == len("<think>\n\n</think>\n\n")


def test_answers_from_documents_are_without_thinking_unless_it_is_asked_for(client: TestClient) -> None:
    def prompt_tokens(**fields: Any) -> int:
        body = {"model": "tiny+docs", "messages": QUESTION, "max_tokens": 1, **fields}
        count: int = post(client, "/v1/chat/completions", **body)["usage"]["prompt_tokens"]
        return count

    closed = len("<think>\n\n</think>\n\n")
    assert prompt_tokens() - prompt_tokens(chat_template_kwargs={"enable_thinking": True}) == closed
    assert prompt_tokens() - prompt_tokens(reasoning_effort="high") == closed


def test_a_response_has_a_reasoning_item_before_its_message(client: TestClient) -> None:
    found = post(client, "/v1/responses", input="Why?")
    thought, message = found["output"]
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "Bees do.")
    assert message["content"][0]["text"] == "So it is."
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] > len("Bees do.")


def test_a_streamed_response_ends_the_reasoning_item_before_its_message(client: TestClient) -> None:
    streamed = events(client, "/v1/responses", input="Why?", reasoning={"effort": "high"})
    thought = [each["delta"] for each in streamed if each["type"] == "response.reasoning_text.delta"]
    answer = [each for each in streamed if each["type"] == "response.output_text.delta"]
    assert "".join(thought) == "Bees do."
    assert "".join(each["delta"] for each in answer) == "So it is."
    assert {each["output_index"] for each in answer} == {1}
    done = [each["item"]["type"] for each in streamed if each["type"] == "response.output_item.done"]
    assert done == ["reasoning", "message"]
    assert streamed[-1]["response"]["reasoning"]["effort"] == "high"


@pytest.fixture(scope="module")
def remote(index_folder: Path) -> Iterator[RemoteLanguageModel]:
    model = writing(thinking_tokenizer("decides"), OUTPUT)
    with live_server(create_app(tiny_service(model, index_folder))) as address:
        yield RemoteLanguageModel(f"{address}/v1", "tiny")


def test_thinking_is_separated_from_the_answer(remote: RemoteLanguageModel) -> None:
    with remote.stream(QUESTION) as stream:
        pieces = list(iter(stream.next_piece, None))
    found = stream.completion
    assert (found.reasoning, found.text, found.ended_in_thinking) == ("Bees do.", "So it is.", False)
    assert "".join(piece.text for piece in pieces if piece.is_thinking) == found.reasoning
    assert "".join(remote.stream(QUESTION)) == found.text
    assert found.usage.reasoning_tokens == len(OUTPUT) - len("So it is.")


def test_thinking_is_switched_and_limited(remote: RemoteLanguageModel) -> None:
    usual = remote.generate(QUESTION, max_new_tokens=1).usage.prompt_tokens
    off = remote.generate(QUESTION, max_new_tokens=1, thinking=False).usage.prompt_tokens
    assert off - usual == len("<think>\n\n</think>\n\n")
    limited = remote.generate(QUESTION, max_new_tokens=3, max_thinking_tokens=5)
    assert (limited.reasoning, len(limited.text)) == ("Bees", 3)
    cut = remote.generate(QUESTION, max_new_tokens=12)
    assert (cut.text, cut.finish_reason, cut.ended_in_thinking) == ("", "length", True)


def body(kind: Any, **conversation: Any) -> dict[str, Any]:
    prompt = Conversation(QUESTION, **conversation)
    return build_body(prompt, Settings(), ServedModel("m", kind, None, ""))[1]


def test_each_kind_of_server_gets_the_variables_that_it_knows() -> None:
    variables = {"reasoning_effort": "high", "date": "today"}
    on = {"thinking": True, "template_variables": variables}
    switched = {**variables, "enable_thinking": True, "thinking": True}
    for kind in ("vllm", "antiphon", "llamacpp", "lmstudio", "other"):
        assert body(kind, **on)["chat_template_kwargs"] == switched
        assert "chat_template_kwargs" not in body(kind)
    assert body("other", **on)["reasoning_effort"] == "high"
    assert (body("ollama", **on)["reasoning_effort"], body("ollama", **on)["think"]) == ("high", True)
    off = body("ollama", thinking=False)
    assert (off["reasoning_effort"], off["think"], "chat_template_kwargs" in off) == ("none", False, False)
    assert not {"think", "reasoning_effort"} & body("ollama").keys()
    with pytest.raises(ValueError, match="max_thinking_tokens is 5, which only local models"):
        build_body(Conversation(QUESTION), Settings(max_thinking_tokens=5), ServedModel("m", "vllm", None, ""))
