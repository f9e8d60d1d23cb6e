"""Requests of Open WebUI, LibreChat and Continue, replayed; and the standard tests of LangChain over HTTP."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.integrations.scripted_model import ScriptedModel
from tests.pipelines.server.conftest import Serve
from tests.pipelines.server.live_server import live_server

pytestmark = pytest.mark.slow

RECORDED = [json.loads(path.read_text("utf-8")) for path in sorted(Path(__file__).with_name("data").glob("*.json"))]
REQUESTS = [(each["client"], request) for each in RECORDED for request in each["requests"]]
MODELS = ("tiny", "tiny+docs")
ORIGIN = "http://chat.example:3000"


def named(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test with the recorded requests of these names."""
    found = [pytest.param(each, id=f"{who}: {each['name']}") for who, each in REQUESTS if each["name"] in names]
    assert found, f"no recorded request is called {' or '.join(names)}"
    return pytest.mark.parametrize("request_", found)


CHATS = named("chat", "chat with all parameters", "chat with content parts")
TITLES = named("title", "title, completion", "follow-up questions")
AGENTS = named("agent", "agent with a question", "tools")


@pytest.fixture(scope="module")
def client(serve: Serve) -> Iterator[TestClient]:
    with serve(api_keys=("KEY",), allowed_origins=(ORIGIN,), max_output_tokens=24) as client:
        yield client


def replay(client: TestClient, request: dict[str, Any], model: str) -> Any:
    body = None if request["body"] is None else {**request["body"], "model": model}
    response = client.request(request["method"], request["path"], headers=request["headers"], json=body)
    assert response.status_code == 200, response.text
    return response


def events(response: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, which ends with the marker that clients wait for."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@CHATS
@pytest.mark.parametrize("model", MODELS)
def test_a_chat_streams_text_and_the_usage_that_was_asked_for(
    client: TestClient, request_: dict[str, Any], model: str
) -> None:
    chunks = events(replay(client, request_, model))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas)
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
    assert ends[-1] in ("stop", "length")
    assert set(ends[:-1]) == {None}
    has_usage = bool((request_["body"].get("stream_options") or {}).get("include_usage"))
    assert [chunk["usage"]["total_tokens"] > 0 for chunk in chunks if chunk.get("usage")] == [True] * has_usage
    assert has_usage == (chunks[-1]["choices"] == [])


@TITLES
@pytest.mark.parametrize("model", MODELS)
def test_a_title_is_text_of_one_message(client: TestClient, request_: dict[str, Any], model: str) -> None:
    answer = replay(client, request_, model).json()
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["choices"][0]["message"]["content"], str)
    assert answer["usage"]["total_tokens"] == sum(
        answer["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion")
    )


@named("title, structured")
@pytest.mark.parametrize("model", MODELS)
def test_a_structured_title_follows_its_schema(serve: Serve, request_: dict[str, Any], model: str) -> None:
    with serve(api_keys=("KEY",), max_output_tokens=200) as client:
        content = json.loads(replay(client, request_, model).json()["choices"][0]["message"]["content"])
    assert {"language", "title"} <= set(content)


@AGENTS
def test_an_agent_receives_the_call_of_its_tool(request_: dict[str, Any]) -> None:
    name = request_["body"]["tools"][0]["function"]["name"]
    model = ScriptedModel(answer=json.dumps({"name": name, "arguments": {"query": "keys", "filepath": "keys.md"}}))
    with TestClient(create_app(make_service(model, ServerSettings(), name="scripted"))) as client:
        chunks = events(replay(client, request_, "scripted"))
    calls = [call for each in chunks if each["choices"] for call in each["choices"][0]["delta"].get("tool_calls") or []]
    assert [call["function"]["name"] for call in calls] == [name]
    known = request_["body"]["tools"][0]["function"]["parameters"]["properties"]
    assert set(json.loads(calls[0]["function"]["arguments"])) & set(known)
    assert [each["choices"][0]["finish_reason"] for each in chunks if each["choices"]][-1] == "tool_calls"
    assert chunks[-1]["usage"]["prompt_tokens"] > 0


@named("agent with a question")
def test_a_model_with_documents_answers_without_the_tools_that_it_may_call(
    client: TestClient, request_: dict[str, Any]
) -> None:
    chunks = events(replay(client, request_, "tiny+docs"))
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"])


@named("autocomplete")
def test_autocompletion_continues_text_up_to_a_stop_string(client: TestClient, request_: dict[str, Any]) -> None:
    chunks = events(replay(client, request_, "tiny"))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text
    assert not any(stop in text for stop in request_["body"]["stop"])


@named("models")
def test_the_list_of_models_has_ids_and_owners(client: TestClient, request_: dict[str, Any]) -> None:
    listed = replay(client, request_, "tiny").json()
    assert [each["id"] for each in listed["data"]] == ["tiny", "tiny+docs"]
    assert all(each["object"] == "model" and each["owned_by"] and each["created"] > 0 for each in listed["data"])


@named("embeddings")
def test_embeddings_come_in_the_asked_encoding(client: TestClient, request_: dict[str, Any]) -> None:
    data = replay(client, request_, "tiny").json()["data"]
    encoded = request_["body"].get("encoding_format") == "base64"
    vectors = [
        np.frombuffer(base64.b64decode(each["embedding"]), "<f4") if encoded else each["embedding"] for each in data
    ]
    assert [len(vector) for vector in vectors] == [256, 256]


@named("rerank")
def test_reranked_documents_come_where_the_client_reads_them(client: TestClient, request_: dict[str, Any]) -> None:
    answer = replay(client, request_, "tiny").json()
    for name in ("results", "data"):  # Open WebUI and others read the first, Continue reads the second
        scores = {each["index"]: each["relevance_score"] for each in answer[name]}
        assert scores[0] > scores[1]


def test_a_browser_on_an_allowed_page_may_send_requests(client: TestClient) -> None:
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    asked |= {"Access-Control-Request-Headers": "authorization,content-type"}
    allowed = client.options("/v1/chat/completions", headers=asked)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert {"authorization", "content-type"} <= set(allowed.headers["access-control-allow-headers"].split(","))
    listed = client.get("/v1/models", headers={"Origin": ORIGIN, "Authorization": "Bearer KEY"})
    assert listed.headers["access-control-allow-origin"] == ORIGIN
    assert client.options("/v1/models", headers=asked | {"Origin": "http://other.example"}).status_code == 403


@pytest.fixture(scope="module")
def _served() -> Iterator[None]:
    service = make_service(ScriptedModel(), ServerSettings(), name="scripted")
    with live_server(create_app(service)) as TestChatOpenAI.address:
        yield


@pytest.mark.exhaustive  # some 15 seconds; the other tests of the protocol detect the same bugs
@pytest.mark.usefixtures("_served")
@pytest.mark.filterwarnings(
    "ignore:Received a Pydantic BaseModel V1 schema"
)  # ChatOpenAI mistakes tools for such models
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of objects that openai-python has parsed
class TestChatOpenAI(ChatModelIntegrationTests):
    address: str

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        served = {"base_url": f"{self.address}/v1", "api_key": "none", "model": "scripted", "stream_usage": True}
        http_client = httpx.AsyncClient(
            limits=httpx.Limits(max_keepalive_connections=0)
        )  # each test has a separate event loop
        options = {"max_completion_tokens": 200, "logit_bias": {ord('"'): 100}, "max_retries": 0}
        return served | options | {"http_async_client": http_client}

    @property
    def model_override_value(self) -> str:
        return "scripted"

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True
