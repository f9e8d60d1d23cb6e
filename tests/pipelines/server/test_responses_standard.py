"""/v1/responses against the types of Open Responses: its compliance cases, streamed and not, and what they leave out.

The cases ask what openresponses.org's own suite asks. Its picture is refused by name: this server reads texts. The
model behind the server calls tools by rule, and says the same to all else.
"""

from __future__ import annotations

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
from antiphon.accel.text.messages import PromptInput
from antiphon.accel.text.parameters import Parameters
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.integrations.scripted import Scripted, tool_tokenizer

ANSWER = "Ahoy: one, two, three."


def kind_of(model: type[BaseModel]) -> str:
    """The one type that an event of this class has."""
    [kind] = list(model.model_fields["type"].annotation)  # type: ignore[call-overload]
    assert isinstance(kind, StrEnum)
    return str(kind)


EVENTS: dict[str, type[BaseModel]] = {
    kind_of(each): each
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
FORM = {"type": "json_schema", "name": "bee", "schema": {"type": "object", "properties": {"queen": {"const": True}}}}
SUNNY = [
    {"type": "message", "role": "user", "content": "Is it sunny in Rome?"},
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"location": "Rome"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "It is."},
]


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, dict[str, Any]] = {
    "a text": {"input": [turn("user", "Say hello in exactly 3 words.")]},
    "a system's message": {"input": [turn("system", "Speak as pirates do."), turn("user", "Say hello.")]},
    "several turns": {
        "input": [
            turn("user", "My name is Alice."),
            turn("assistant", [{"type": "output_text", "text": "Hello Alice!"}]),
            turn("user", [{"type": "input_text", "text": "What is my name?"}]),
        ]
    },
    "a call": {"input": [turn("user", "What's the weather like in San Francisco?")], "tools": [WEATHER]},
    "a call that has to be": {"input": "Hello", "tools": [WEATHER, TIME], "tool_choice": "required"},
    "a call of one tool": {
        "input": "Hello",
        "tools": [TIME, WEATHER],
        "tool_choice": {"type": "function", "name": "get_weather"},
    },
    "a call of those allowed": {
        "input": "Hello",
        "tools": [TIME, WEATHER],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", **WEATHER}]},
    },
    "what a tool said": {"input": SUNNY, "tools": [WEATHER]},
    "no tool": {"input": "Hello", "tools": [WEATHER], "tool_choice": "none"},
    "citations": {"input": "Hello", "references": [{"title": "Log", "url": "https://example.org", "text": ANSWER}]},
    "hints": {"input": "Hello", "prompt_cache_key": "k", "safety_identifier": "s", "metadata": {"a": "b"}, "user": "u"},
    "instructions": {"input": "Hello", "instructions": "Be brief.", "temperature": 0.7, "top_p": 0.9, "seed": 3},
}
CALLS = {"a call", "a call that has to be", "a call of one tool", "a call of those allowed"}


@pytest.fixture(scope="module")
def served() -> Iterator[TestClient]:
    service = make_service(Scripted(ANSWER), ServerSettings(), name="scripted")
    with TestClient(create_app(service)) as client:
        yield client


def whole(client: TestClient, **body: Any) -> dict[str, Any]:
    """The response, which both kinds of types hold."""
    answer = client.post("/v1/responses", json={"model": "scripted", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    Response.model_validate(found)
    openresponses_types.ResponseResource.model_validate(found)
    return found


def events(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    """The events, each of the type that its name says; the last line is the one that the protocol ends with."""
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


def items(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that events build, each opened, grown and closed in its order."""
    built: list[dict[str, Any]] = []
    text = ""
    for each in told:
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
def test_a_case_is_answered_in_the_types_of_the_specification(served: TestClient, case: str) -> None:
    response = whole(served, **CASES[case])
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
    assert items(streamed) == streamed[-1]["response"]["output"]
    [told] = streamed[-1]["response"]["output"]
    same = {"type", "status", "role", "content", "name", "arguments"} & item.keys()
    assert {name: told[name] for name in same} == {name: item[name] for name in same}


def test_citations_and_logprobs_come_as_events(served: TestClient) -> None:
    told = events(served, **CASES["citations"])
    [added] = [each for each in told if each["type"] == "response.output_text.annotation.added"]
    assert (added["annotation"]["title"], added["annotation"]["url"]) == ("Log", "https://example.org")
    assert items(told)[0]["content"][0]["annotations"] == [added["annotation"]]


def test_a_text_that_is_cut_is_incomplete_and_so_is_its_response(typist: LanguageModel) -> None:
    service = make_service(typist, ServerSettings(), name="scripted")
    asked: dict[str, Any] = {"input": "Hello", "max_output_tokens": 16, "top_logprobs": 2}
    with TestClient(create_app(service)) as client:
        response = whole(client, **asked, include=["message.output_text.logprobs"])
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][0]["status"] == response["status"] == "incomplete"
        logprobs = response["output"][0]["content"][0]["logprobs"]
        assert [len(each["top_logprobs"]) for each in logprobs] == [2] * 16
        streamed = events(client, **asked, include=["message.output_text.logprobs"])
        assert streamed[-1]["type"] == "response.incomplete"
        assert items(streamed) == streamed[-1]["response"]["output"]
        deltas = [entry for each in streamed if each["type"].endswith("text.delta") for entry in each["logprobs"]]
        assert [each["token"] for each in deltas] == [each["token"] for each in logprobs]
        assert whole(client, **asked)["output"][0]["content"][0]["logprobs"] == [], "told where they are asked for"


def test_an_object_names_the_form_that_it_has() -> None:
    """Open Responses' types have no schema there, OpenAI's have: clients read the answer by it."""
    service = make_service(Scripted(), ServerSettings(), name="scripted")
    with TestClient(create_app(service)) as client:
        asked = {"model": "scripted", "input": "A bee", "text": {"format": FORM}, "max_output_tokens": 60}
        answer = client.post("/v1/responses", json=asked).json()
    assert answer["text"]["format"] == FORM | {"description": None, "strict": False}
    assert json.loads(answer["output"][0]["content"][0]["text"]).get("queen", True) is True
    Response.model_validate(answer)


class Failing(Scripted):
    """Says some, and then its machine breaks."""

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[str] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Stream:
        def steps() -> Iterator[Step]:
            yield Step(tuple(tool_tokenizer().encode("Ahoy", add_special_tokens=False)), 0, 0, 0.0)
            raise RuntimeError("the machine is on fire")

        return Stream(steps(), self.tokenizer, prompt_tokens=1, likelihood=lambda: 0.0)


def test_an_error_in_the_midst_is_an_event_and_a_response_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    service = make_service(Failing(), ServerSettings(), name="scripted")
    with TestClient(create_app(service)) as client:
        told = events(client, input="Hello")
        assert [each["type"] for each in told[-3:]] == ["response.output_text.delta", "error", "response.failed"]
        assert told[-2]["error"]["type"] == "server_error"
        assert told[-1]["response"]["error"]["code"] == "server_error"
        assert "fire" not in json.dumps(told), "what broke inside is the log's"
        assert "a request failed" in caplog.text
        answer = client.post("/v1/responses", json={"model": "scripted", "input": "Hello"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


PICTURE = [turn("user", [{"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}])]
ELSEWHERE = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "elsewhere"}]}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": PICTURE}, 400, "messages.0.content"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 400, "input.0"),
        ({"input": "Hello", "tools": [{"type": "web_search", "name": "w"}]}, 400, "tools"),
        ({"input": "Hello", "tools": [WEATHER], "tool_choice": ELSEWHERE}, 400, "tool_choice"),
        ({"input": "Hello", "background": True}, 400, "background"),
        ({"input": "Hello", "model": "none"}, 404, "model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_offered_is_refused_by_name_before_a_stream_begins(
    served: TestClient, body: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    answer = served.post("/v1/responses", json={"model": "scripted", "stream": stream, **body})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    openresponses_types.ErrorPayload.model_validate(error)
