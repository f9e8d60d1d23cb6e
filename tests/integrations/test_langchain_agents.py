"""LangChain's agents: profiles, answers under a schema next to tools, summaries, and tool results as references."""

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pytest_socket import enable_socket

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import ChatAntiphon, ReferencesMiddleware
from tests.accel.fake_server import ANSWER, FakeServer, run_server
from tests.accel.scripted_torch_model import scripted_model
from tests.integrations.scripted_model import HERMES, ScriptedModel, tool_tokenizer
from tests.table_part import part
from tests.tiny import EOS, tiny_model

pytestmark = pytest.mark.slow

LLAMA = HERMES.replace("<tool_call>\n", "").replace("\n</tool_call>", "").replace('"arguments"', '"parameters"')
THINKING = HERMES.replace("<tool_call>", "[THINK]\n\n[/THINK]\n\n<tool_call>")
RESULT = "Bees live in colonies of up to sixty thousand, and each colony has one queen."


class Counted(BaseModel):
    """What was counted."""

    last: int
    things: list[str]


def look_up(word: str) -> str:
    """Look up a word."""
    return RESULT


class WritingModel(LanguageModel):
    """Wants to call the tool, and after its result to write no JSON; it has logits, so a grammar can overrule it."""

    def __init__(self, template: str) -> None:
        tokenizer = tool_tokenizer()
        tokenizer.chat_template = template
        super().__init__(tiny_model(max_position_embeddings=4096), tokenizer, name="writing")
        self.call = '<tool_call>\n{"name": "look_up", "arguments": {"word": "bee"}}\n</tool_call>'
        if template == LLAMA:
            self.call = '{"name": "look_up", "parameters": {"word": "bee"}}'
        self.asked: list[str] = []

    def stream(self, prompt: Any, **parameters: Any) -> Any:
        tokens = self.tokenize(prompt).tokens
        self.asked.append(str(self.tokenizer.decode(list(tokens))))
        text = '{"last is no JSON: "]}' if RESULT in self.asked[-1] else self.call
        script = [*self.tokenizer.encode(text, add_special_tokens=False), EOS]
        model = scripted_model(script, len(tokens), len(self.tokenizer), positions=2047)
        return LanguageModel(model, self.tokenizer).stream(prompt, **parameters)


def chat_on(address: str) -> ChatAntiphon:
    settings: Any = {"model": address}
    return ChatAntiphon(**settings)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    enable_socket()
    with run_server(FakeServer(owner="vllm", window=4096)) as running:
        yield running


@pytest.mark.parametrize("template", part((HERMES, LLAMA, THINKING), (LLAMA, THINKING)))
def test_an_agent_calls_a_tool_and_its_answer_follows_the_schema(template: str) -> None:
    model = WritingModel(template)
    agent = create_agent(ChatAntiphon(language_model=model, max_tokens=90), [look_up], response_format=Counted)
    state = agent.invoke({"messages": [HumanMessage("What is a bee?")]})
    question, call, result, answer = state["messages"]
    assert [(each["name"], each["args"]) for each in call.tool_calls] == [("look_up", {"word": "bee"})]
    assert (question.content, result.content) == ("What is a bee?", RESULT)
    assert state["structured_response"] == Counted.model_validate_json(answer.content)
    assert len(model.asked) == 2
    assert "Call a tool, or answer in JSON that follows this schema:" in model.asked[0]
    assert '"name": "Counted"' not in model.asked[0], "the schema is no tool"


def test_a_server_gets_the_schema_as_response_format(server: FakeServer) -> None:
    server.pieces = ('{"last": 3, ', '"things": ["bee"]}')
    chat = chat_on(f"{server.url}#tiny")
    state = create_agent(chat, [look_up], response_format=Counted).invoke({"messages": [HumanMessage("Count")]})
    assert state["structured_response"] == Counted(last=3, things=["bee"])
    [body] = [each for each in server.requests if each.get("tools")]
    assert body["response_format"]["json_schema"]["schema"] == Counted.model_json_schema()


def test_a_profile_says_what_the_model_can_do(tiny: LanguageModel, server: FakeServer) -> None:
    profiles = [
        ChatAntiphon(language_model=tiny, max_tokens=24).profile or {},
        ChatAntiphon(language_model=ScriptedModel()).profile or {},
        chat_on(f"{server.url}#tiny").profile or {},
        chat_on("http://127.0.0.1:9#none").profile or {},
    ]
    assert [each.get("max_input_tokens") for each in profiles] == [4096, 16_384, 4096, None]
    assert [each["tool_calling"] for each in profiles] == [False, True, True, True]
    assert profiles[0]["max_output_tokens"] == 24
    assert all(each["structured_output"] for each in profiles)


def test_a_response_format_of_another_kind_is_refused_and_objects_are_json(tiny: LanguageModel) -> None:
    chat = ChatAntiphon(language_model=tiny, max_tokens=24)
    assert str(chat.invoke("Which?", response_format={"type": "json_object"}).text).startswith("{")
    with pytest.raises(ValueError, match="response_format is 'xml'; give OpenAI's text, json_object or json_schema"):
        chat.invoke("Which?", response_format="xml")


def test_an_agent_summarizes_a_conversation_that_fills_most_of_the_window() -> None:
    chat = ChatAntiphon(language_model=ScriptedModel(answer="They spoke of bees."), max_tokens=24)
    count: Any = chat.get_num_tokens_from_messages
    limits: Any = {"trigger": ("fraction", 0.8), "keep": ("messages", 1), "trim_tokens_to_summarize": 4000}
    agent = create_agent(chat, [], middleware=[SummarizationMiddleware(chat, token_counter=count, **limits)])
    turns = [HumanMessage("Bees? " * 100) if place % 2 == 0 else AIMessage("Bees. " * 100) for place in range(24)]
    short = agent.invoke({"messages": [*turns[:2], HumanMessage("And?")]})["messages"]
    assert short[0].content == turns[0].content
    first, *others = agent.invoke({"messages": [*turns, HumanMessage("And?")]})["messages"]
    assert "They spoke of bees." in first.content
    assert [each.content for each in others] == ["And?", "They spoke of bees."]


@pytest.mark.parametrize("is_async", [False, True])
async def test_results_of_tools_are_drafted_from_and_cited(is_async: bool) -> None:
    model = ScriptedModel(answer=f"It is known: {RESULT}")
    agent = create_agent(ChatAntiphon(language_model=model), [look_up], middleware=[ReferencesMiddleware()])
    asked: Any = {"messages": [HumanMessage("What of 'bees'?")]}
    state = await agent.ainvoke(asked) if is_async else agent.invoke(asked)
    assert [references for _, references in model.asked] == [(), (RESULT,)]
    [note] = state["messages"][-1].additional_kwargs["citations"]
    assert (note["title"], note["cited_text"]) == ("look_up", RESULT.removesuffix("."))
    assert state["messages"][2].artifact is None, "the state keeps the message as it was"


def test_chat_openai_sends_the_results_to_vllm_and_its_answer_cites_them(server: FakeServer) -> None:
    body = {"top_k": 5, "vllm_xargs": {"prediction": "Bees"}}
    chat = ChatOpenAI(model="tiny", base_url=server.url, api_key="none", extra_body=body, streaming=True)  # type: ignore[arg-type]
    agent = create_agent(chat, [look_up], middleware=[ReferencesMiddleware()])
    call = AIMessage("", tool_calls=[{"name": "look_up", "args": {"word": "bee"}, "id": "1"}])
    asked: list[Any] = [HumanMessage("What is a bee?"), call, ToolMessage(RESULT, tool_call_id="1", name="look_up")]
    state = agent.invoke({"messages": asked})
    [sent] = server.requests
    assert (sent["top_k"], sent["vllm_xargs"]) == (5, {"prediction": "Bees", "references": [RESULT]})
    assert state["messages"][-1].content == ANSWER
    [note] = state["messages"][-1].additional_kwargs["citations"]
    assert note["title"] == "look_up"
    assert note["cited_text"] in RESULT
