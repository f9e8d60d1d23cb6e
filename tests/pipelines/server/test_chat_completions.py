"""Chat completions over HTTP: the same text as `LanguageModel`, with and without streaming, in OpenAI's format."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI

from antiphon.accel import LanguageModel
from antiphon.pipelines.rendering.segments import displayed_quote
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.integrations.scripted_model import ScriptedModel

MESSAGES = [{"role": "user", "content": "How do bees live?"}]
REFERENCES = ["Bees live in colonies of up to sixty thousand.", {"id": "r2", "title": "Honey", "text": "Honey keeps."}]


def post(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json={"model": "tiny"} | body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def chat(client: TestClient, **more: Any) -> dict[str, Any]:
    return post(client, "/v1/chat/completions", **{"messages": MESSAGES, "max_tokens": 12} | more)


def events(client: TestClient, path: str = "/v1/chat/completions", **body: Any) -> list[Any]:
    with client.stream("POST", path, json={"model": "tiny", "stream": True} | body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 7, "top_p": 0.9, "top_k": 20}])
def test_the_text_equals_that_of_the_language_model_with_and_without_streaming(
    client: TestClient, typist: LanguageModel, options: dict[str, Any]
) -> None:
    own = typist.generate(MESSAGES, max_new_tokens=12, **options)
    whole = chat(client, references=REFERENCES, **options)
    assert whole["choices"][0]["message"]["content"] == own.text
    assert whole["usage"]["prompt_tokens"] == own.usage.prompt_tokens
    streamed = events(client, messages=MESSAGES, max_tokens=12, references=REFERENCES, **options)
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in streamed) == own.text
    assert streamed[0]["choices"][0]["delta"]["role"] == "assistant"
    assert streamed[-1]["choices"][0]["finish_reason"] == "length"


def test_a_stream_has_usage_token_ids_and_metrics_if_requested(client: TestClient, typist: LanguageModel) -> None:
    own = typist.generate(MESSAGES, max_new_tokens=12)
    options = {"include_usage": True, "continuous_usage_stats": True}
    result = events(client, messages=MESSAGES, max_completion_tokens=12, stream_options=options, return_token_ids=True)
    assert result[-1]["choices"] == []
    assert result[-1]["usage"]["completion_tokens"] == 12
    assert {"num_draft_tokens", "num_accepted_draft_tokens"} <= result[-1]["metrics"]["speculative_decoding"].keys()
    ids = [token for each in result[:-1] for token in each["choices"][0].get("token_ids", [])]
    assert tuple(ids) == own.tokens
    assert result[-2]["usage"]["completion_tokens"] == 12


def test_each_choice_has_its_own_seed(client: TestClient, typist: LanguageModel) -> None:
    result = chat(client, n=3, temperature=1.0, seed=5)["choices"]
    own = [typist.generate(MESSAGES, max_new_tokens=12, temperature=1.0, seed=5 + each).text for each in range(3)]
    assert [each["message"]["content"] for each in result] == own
    assert [each["index"] for each in result] == [0, 1, 2]


def test_a_required_tool_is_called(client: TestClient) -> None:
    parameters = {"type": "object", "properties": {"of": {"enum": ["bees", "ants"]}}, "required": ["of"]}
    tool = {"type": "function", "function": {"name": "count", "parameters": parameters}}
    body: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "max_tokens": 64}
    choice = chat(client, **body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "count"
    assert json.loads(call["function"]["arguments"])["of"] in ("bees", "ants")
    streamed = events(client, messages=MESSAGES, **body)
    assert streamed[-1]["choices"][0]["delta"]["tool_calls"][0]["function"] == call["function"]
    assert not any(each["choices"][0]["delta"].get("content") for each in streamed), (
        "a tool call is not sent as content"
    )


def test_predictions_are_drafted_from_and_counted(client: TestClient, typist: LanguageModel) -> None:
    own = typist.generate(MESSAGES, max_new_tokens=40).text
    usage = chat(client, max_tokens=40, prediction={"type": "content", "content": own})["usage"]
    details = usage["completion_tokens_details"]
    assert usage["completion_tokens"] == 40
    assert details["accepted_prediction_tokens"] > 10
    assert "completion_tokens_details" not in chat(client)["usage"], "present only with a prediction"


def test_continue_final_message_continues_the_assistants_text(client: TestClient, typist: LanguageModel) -> None:
    from antiphon.accel import Conversation

    own = typist.generate(Conversation(MESSAGES, assistant_prefix="Bees"), max_new_tokens=12).text
    messages = [*MESSAGES, {"role": "assistant", "content": "Bees"}]
    result = chat(client, messages=messages, add_generation_prompt=False, continue_final_message=True)
    assert result["choices"][0]["message"]["content"] == own


def test_text_copied_from_a_reference_is_cited(client: TestClient, typist: LanguageModel) -> None:
    own = typist.generate(MESSAGES, max_new_tokens=40).text
    source = {"id": "one", "title": "Source", "url": "https://example.org/x", "text": own}
    message = chat(client, max_tokens=40, references=[source])["choices"][0]["message"]
    [annotation] = message["annotations"]
    cited = annotation["url_citation"]
    assert annotation["type"] == "url_citation"
    assert (cited["url"], cited["title"], cited["passage_id"]) == ("https://example.org/x", "Source", "one")
    assert message["content"][cited["start_index"] : cited["end_index"]] == cited["cited_text"]
    assert own[cited["passage_start"] : cited["passage_end"]] == cited["cited_text"]
    assert (cited["display_text"], cited["location"]) == (displayed_quote(cited["cited_text"]), "Source")


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "huge"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"audio": {"voice": "x"}}, 400, "audio"),
        ({"functions": [{}]}, 400, "functions"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"n": 9}, 400, "n"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 7}, 400, None),
        ({"logit_bias": {"99999": 1}}, 400, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages.0.content"),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": "g"}, 400, None),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, None),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, 400, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_unsupported_values_are_refused_with_the_parameters_name(
    client: TestClient, change: dict[str, Any], status: int, param: str | None, stream: bool
) -> None:
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "stream": stream} | change)
    response = client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"]
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


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
