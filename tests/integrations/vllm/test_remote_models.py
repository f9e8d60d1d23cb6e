"""The LangChain and LlamaIndex classes with a remote model: calls, streams, references and tools."""

from collections.abc import Iterator

import pytest
from langchain_core.documents import Document
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool

from antiphon.accel import RemoteLanguageModel
from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.llama_index import AntiphonLLM
from tests.accel.fake_server import ANSWER, FakeServer, run_server

TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {"type": "object"}}}
CALL = {"index": 0, "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}


def weather(city: str) -> str:
    """The weather of a city."""
    return city


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with run_server(FakeServer(owner="antiphon", window=4000)) as running:
        yield running


def test_chat_antiphon_uses_a_remote_model(server: FakeServer) -> None:
    chat = ChatAntiphon(language_model=RemoteLanguageModel(server.url))
    said = chat.invoke("How do bees live?", references=[Document(ANSWER)])
    assert said.text == ANSWER
    assert "".join(piece.text for piece in chat.stream("How do bees live?")) == ANSWER
    assert server.requests[0]["references"] == [ANSWER]
    named = ChatAntiphon.model_validate({"model": server.url})
    assert named.invoke("How do bees live?").text == ANSWER
    server.pieces, server.calls = (), (CALL,)
    called = chat.bind_tools([TOOL], tool_choice="weather").invoke("What is the weather in Bonn?")
    assert [(each["name"], each["args"]) for each in called.tool_calls] == [("weather", {"city": "Bonn"})]
    assert server.requests[-1]["tool_choice"] == {"type": "function", "function": {"name": "weather"}}


def test_antiphon_llm_uses_a_remote_model(server: FakeServer) -> None:
    llm = AntiphonLLM(language_model=RemoteLanguageModel(server.url))
    assert llm.metadata.context_window == 4000
    assert llm.complete("How do bees live?", references=[ANSWER]).text == ANSWER
    assert "".join(piece.delta or "" for piece in llm.stream_chat([ChatMessage("How?")])) == ANSWER
    assert server.requests[0]["references"] == [ANSWER]
    server.pieces, server.calls = (), (CALL,)
    tool = FunctionTool.from_defaults(weather)
    called = llm.chat_with_tools([tool], "What is the weather in Bonn?", tool_required=True)
    assert [each.tool_kwargs for each in llm.get_tool_calls_from_response(called)] == [{"city": "Bonn"}]
    assert server.requests[-1]["tool_choice"] == "required"
