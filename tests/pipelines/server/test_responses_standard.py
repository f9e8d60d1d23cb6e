"""/v1/responses against the types of Open Responses: its compliance cases and further ones, with and without streaming.

The cases are those of openresponses.org's test suite. Its image case is refused, because this server supports text
only. The model behind the server is scripted: it calls tools by rule and answers everything else with the same text.
"""

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Unpack

import openresponses_types
import pytest
from fastapi.testclient import TestClient
from openai.types.responses import Response
from pydantic import BaseModel

from antiphon.accel import LanguageModel, PrefixCache, Step, Stream
from antiphon.accel.text.messages import PromptInput, ReferenceInput
from antiphon.accel.text.parameters import Parameters
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.integrations.scripted_model import ScriptedModel, tool_tokenizer

ANSWER = "Ahoy: one, two, three."


def event_type(model: type[BaseModel]) -> str:
    """Return the event type of a class of events."""
    [kind] = list(model.model_fields["type"].annotation)  # type: ignore[call-overload]
    assert isinstance(kind, StrEnum)
    return str(kind)


EVENTS: dict[str, type[BaseModel]] = {
    event_type(each): each
    for name, each in vars(openresponses_types).items()
    if name.endswith("StreamingEvent") and isinstance(each, type)
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
TIME = {"type": "function", "name": "get_time"}
SUNNY = [
    {"type": "message", "role": "user", "content": "Is it sunny in Rome?"},
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"location": "Rome"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "It is."},
]


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, dict[str, Any]] = {
    "text": {"input": [turn("user", "Say hello in exactly 3 words.")]},
    "system message": {"input": [turn("system", "Speak as pirates do."), turn("user", "Say hello.")]},
    "several turns": {
        "input": [
            turn("user", "My name is Alice."),
            turn("assistant", [{"type": "output_text", "text": "Hello Alice!"}]),
            turn("user", [{"type": "input_text", "text": "What is my name?"}]),
        ]
    },
    "tool call": {"input": [turn("user", "What's the weather like in San Francisco?")], "tools": [WEATHER]},
    "required tool call": {"input": "Hello", "tools": [WEATHER, TIME], "tool_choice": "required"},
    "call of a named tool": {
        "input": "Hello",
        "tools": [TIME, WEATHER],
        "tool_choice": {"type": "function", "name": "get_weather"},
    },
    "call of an allowed tool": {
        "input": "Hello",
        "tools": [TIME, WEATHER],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", **WEATHER}]},
    },
    "tool output": {"input": SUNNY, "tools": [WEATHER]},
    "tool choice none": {"input": "Hello", "tools": [WEATHER], "tool_choice": "none"},
    "citations": {"input": "Hello", "references": [{"title": "Log", "url": "https://example.org", "text": ANSWER}]},
    "hints": {"input": "Hello", "prompt_cache_key": "k", "safety_identifier": "s", "metadata": {"a": "b"}, "user": "u"},
    "instructions": {"input": "Hello", "instructions": "Be brief.", "temperature": 0.7, "top_p": 0.9, "seed": 3},
}
CALLS = {"tool call", "required tool call", "call of a named tool", "call of an allowed tool"}


@pytest.fixture(scope="module")
def served() -> Iterator[TestClient]:
    service = make_service(ScriptedModel(ANSWER), ServerSettings(), name="scripted")
    with TestClient(create_app(service)) as client:
        yield client


def post(client: TestClient, **body: Any) -> dict[str, Any]:
    """Post a request and return the response, validated by both sets of types."""
    answer = client.post("/v1/responses", json={"model": "scripted", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    Response.model_validate(found)
    openresponses_types.ResponseResource.model_validate(found)
    return found


def events(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    """Post a streaming request and return its events, each validated by the class of its type."""
    with client.stream("POST", "/v1/responses", json={"model": "scripted", "stream": True, **body}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = "".join(answer.iter_text()).strip().split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENTS[found[-1]["type"]].model_validate(found[-1])
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def output_items(stream: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the output items that the events build, and check that each is added, extended and done in order."""
    built: list[dict[str, Any]] = []
    text = ""
    for each in stream:
        match each["type"].removeprefix("response."):
            case "output_item.added":
                assert each["output_index"] == len(built)
                assert each["item"]["status"] == "in_progress"
                built.append(each["item"])
                text = ""
            case "output_text.delta" | "function_call_arguments.delta":
                assert each["item_id"] == built[-1]["id"]
                text += each["delta"]
            case "output_text.done":
                assert each["text"] == text
            case "function_call_arguments.done":
                assert each["arguments"] == text
            case "output_item.done":
                assert each["item"]["id"] == built[-1]["id"]
                built[-1] = each["item"]
    return built


@pytest.mark.parametrize("case", CASES)
def test_each_case_is_answered_with_the_types_of_the_specification(served: TestClient, case: str) -> None:
    response = post(served, **CASES[case])
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    [item] = response["output"]
    if case in CALLS:
        assert (item["type"], item["name"]) == ("function_call", "get_weather")
        assert "location" in json.loads(item["arguments"])
    else:
        assert item["content"][0]["text"] == ANSWER
    streamed = events(served, **CASES[case])
    assert [each["type"] for each in streamed[:2]] == ["response.created", "response.in_progress"]
    assert streamed[-1]["type"] == "response.completed"
    assert output_items(streamed) == streamed[-1]["response"]["output"]
    [result] = streamed[-1]["response"]["output"]
    same = {"type", "status", "role", "content", "name", "arguments"} & item.keys()
    assert {name: result[name] for name in same} == {name: item[name] for name in same}


def test_citations_are_sent_as_events(served: TestClient) -> None:
    result = events(served, **CASES["citations"])
    [added] = [each for each in result if each["type"] == "response.output_text.annotation.added"]
    assert (added["annotation"]["title"], added["annotation"]["url"]) == ("Log", "https://example.org")
    assert output_items(result)[0]["content"][0]["annotations"] == [added["annotation"]]


def test_a_truncated_text_and_its_response_are_incomplete(typist: LanguageModel) -> None:
    service = make_service(typist, ServerSettings(), name="scripted")
    body: dict[str, Any] = {"input": "Hello", "max_output_tokens": 16, "top_logprobs": 2}
    with TestClient(create_app(service)) as client:
        response = post(client, **body, include=["message.output_text.logprobs"])
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][0]["status"] == response["status"] == "incomplete"
        logprobs = response["output"][0]["content"][0]["logprobs"]
        assert [len(each["top_logprobs"]) for each in logprobs] == [2] * 16
        streamed = events(client, **body, include=["message.output_text.logprobs"])
        types = [each["type"] for each in streamed]
        assert types[2:4] == ["response.output_item.added", "response.content_part.added"]
        assert types[-1] == "response.incomplete"
        assert output_items(streamed) == streamed[-1]["response"]["output"]
        deltas = [entry for each in streamed if each["type"].endswith("text.delta") for entry in each["logprobs"]]
        assert [each["token"] for each in deltas] == [each["token"] for each in logprobs]
        assert post(client, **body)["output"][0]["content"][0]["logprobs"] == [], "only if the request includes them"


class Failing(ScriptedModel):
    """A model that fails after some tokens."""

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[ReferenceInput] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Stream:
        def steps() -> Iterator[Step]:
            yield Step(tuple(tool_tokenizer().encode("Ahoy", add_special_tokens=False)), 0, 0, 0.0)
            raise RuntimeError("the machine is on fire")

        return Stream(steps(), self.tokenizer, prompt_tokens=1)


def test_an_error_during_the_stream_is_an_event_and_a_failed_response(caplog: pytest.LogCaptureFixture) -> None:
    service = make_service(Failing(), ServerSettings(), name="scripted")
    with TestClient(create_app(service)) as client:
        result = events(client, input="Hello")
        assert [each["type"] for each in result[-3:]] == ["response.output_text.delta", "error", "response.failed"]
        assert result[-2]["error"]["type"] == "server_error"
        assert result[-1]["response"]["error"]["code"] == "server_error"
        assert "fire" not in json.dumps(result), "details of internal errors are only logged"
        assert "a request failed" in caplog.text
        answer = client.post("/v1/responses", json={"model": "scripted", "input": "Hello"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
