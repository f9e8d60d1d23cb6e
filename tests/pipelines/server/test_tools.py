"""Tools over HTTP: calls in any notation, ids that every template accepts, and text that is never lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI

from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.integrations.scripted_model import ScriptedModel

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOL: Any = {"type": "function", "function": {"name": "count", "parameters": PARAMETERS}}
CALL = '{"name": "count", "arguments": {"number": "3"}}'
HISTORY: Any = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "Wait."}]

ANSWERS = {
    "prose and fence": (f"I count:\n```json\n{CALL}\n```\n", 1),
    "two in a row": (f"{CALL}\n{CALL}", 2),
    "Qwen XML": ("<tool_call>\n<function=count>\n<parameter=number>\n3\n</parameter>\n</function>\n</tool_call>", 1),
    "Mistral": ('[TOOL_CALLS]count[ARGS]{"number": 3}', 1),
    "unreadable": ("<tool_call>count three</tool_call>", 0),
    "cut off": ('<tool_call>{"name": "count", "arguments": {"num', 0),
}


def openai_client(answer: str) -> OpenAI:
    """Return OpenAI's client of a server whose model answers with a text."""
    app = create_app(make_service(ScriptedModel(answer=answer), ServerSettings(), name="scripted"))
    transport: Any = TestClient(app)
    return OpenAI(base_url="http://testserver/v1", api_key="none", http_client=transport, max_retries=0)


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_are_parsed_whole_and_streamed_and_other_text_is_content(name: str) -> None:
    text, calls = ANSWERS[name]
    client = openai_client(text)
    asked: Any = {"model": "scripted", "messages": HISTORY, "tools": [TOOL]}
    choice = client.chat.completions.create(**asked).choices[0]
    found = choice.message.tool_calls or []
    assert [json.loads(each.function.arguments) for each in found] == [{"number": 3}] * calls
    assert all(len(each.id) == 9 and each.id.isalnum() for each in found)
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    assert choice.message.content == ({"prose and fence": "I count:\n"}.get(name) if calls else text)
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == (choice.message.content or "")
    streamed = [call for delta in deltas for call in delta.tool_calls or []]
    assert [each.function.arguments for each in streamed if each.function] == [
        each.function.arguments for each in found
    ]


def test_parallel_calls_can_be_turned_off() -> None:
    client = openai_client(f"{CALL}\n{CALL}")
    asked: Any = {"model": "scripted", "messages": HISTORY, "tools": [TOOL], "parallel_tool_calls": False}
    assert len(client.chat.completions.create(**asked).choices[0].message.tool_calls or []) == 1
    response = client.responses.create(
        model="scripted",
        input=HISTORY,
        tools=[{"type": "function", "name": "count", "parameters": PARAMETERS, "strict": False}],
        parallel_tool_calls=False,
    )
    assert [item.type for item in response.output] == ["function_call"]


def test_a_round_trip_with_its_own_and_with_other_ids() -> None:
    client = openai_client(CALL)
    asked: Any = {"model": "scripted", "tools": [TOOL]}
    message = client.chat.completions.create(messages=HISTORY, **asked).choices[0].message
    for number in ((message.tool_calls or [])[0].id, "call_of_another_provider", "functions.count:0"):
        call = {"id": number, "type": "function", "function": {"name": "count", "arguments": '{"number": 3}'}}
        turns = [
            *HISTORY,
            {"role": "user", "content": "Now."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": number, "content": "1 2 3"},
        ]
        assert client.chat.completions.create(messages=turns, **asked).choices[0].finish_reason == "tool_calls"
