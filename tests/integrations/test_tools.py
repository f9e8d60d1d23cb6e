"""Tools in both frameworks: they are in the prompt, calls are parsed whole and streamed, and agents work."""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.llama_index import AntiphonLLM
from tests.integrations.frameworks import CHATS
from tests.integrations.scripted_model import ScriptedModel

pytestmark = pytest.mark.slow

in_both_frameworks = pytest.mark.parametrize("name", CHATS)

CALL = '{"name": "count", "arguments": {"number": 3}}'


def count(number: int) -> str:
    """Count to a number."""
    return " ".join(map(str, range(1, number + 1)))


def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello {name}"


@in_both_frameworks
def test_a_forced_tool_choice_starts_the_answer_with_a_tool_call(name: str) -> None:
    model = ScriptedModel()
    chat = CHATS[name](model, max_tokens=8)

    def opened(choice: Any, **given: Any) -> str:
        chat.call_tools([count, greet], "Count to 3", choice, **given)
        return model.asked[-1][0].rpartition("<|im_start|>assistant\n")[2]

    assert opened("auto") == opened(None) == ""
    assert opened("any") == opened(True) == '<tool_call>\n{"name": "'
    assert opened("greet") == '<tool_call>\n{"name": "greet", "arguments": '
    assert opened({"type": "function", "function": {"name": "greet"}}) == opened("greet")
    assert '"count"' not in model.asked[-1][0], "tools other than the chosen one are not offered"
    assert chat.call_tools([count, greet], "Greet 'Ada'", "greet").calls == [("greet", {"name": "Ada"})]
    assert chat.call_tools([count], "Count to 3", "none").calls == []
    assert "<tools>" not in model.asked[-1][0]
    with pytest.raises(ValueError, match="'other', which is no tool's name"):
        opened("other")
    if name == "llama-index":
        assert opened(None, tool_required=True) == opened("any")
        assert opened("greet", tool_required=True) == opened("greet")


@in_both_frameworks
def test_tools_raise_if_the_chat_template_does_not_support_them(name: str, tiny: LanguageModel) -> None:
    with pytest.raises(ValueError, match="does not write tools"):
        CHATS[name](tiny).call_tools([count], "Count to 3")


@in_both_frameworks
@pytest.mark.parametrize(
    ("text", "content", "calls", "broken"),
    [
        (f"Let me see.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}", "Let me see.\n", 2, []),
        ("[1] Bees live in colonies.", "[1] Bees live in colonies.", 0, []),
        ("a <tool_ and a b", "a <tool_ and a b", 0, []),
        ("<tool_call>{count}</tool_call>", None, 0, ["{count}"]),
        ("<tool_call>{}</tool_call>", None, 0, ["{}"]),
        ("<tool_call></tool_call>", None, 0, [""]),
        (f"<tool_call>{CALL}</tool_call><tool_call>{{}}</tool_call>", "<tool_call>{}</tool_call>", 1, ["{}"]),
    ],
)
def test_tool_calls_are_parsed_whole_and_streamed(
    name: str, text: str, content: str | None, calls: int, broken: list[str]
) -> None:
    content = text if content is None else content  # what cannot be parsed stays content
    chat = CHATS[name](ScriptedModel(answer=text))
    history = chat.turns(("user", "Count"), ("assistant", "Wait."))
    whole = chat.call_tools([count], history)
    tools = FunctionTool.from_defaults(count).metadata.to_openai_tool()
    streamed = chat.stream(history, tools=[tools])
    for reply in (whole, streamed.whole):
        assert (reply.text, reply.calls) == (content, [("count", {"number": 3})] * calls)
        assert len(reply.malformed) == len(broken)
    assert streamed.whole.malformed == whole.malformed
    assert all(content.startswith("".join(streamed.pieces[:end])) for end in range(len(streamed.pieces)))
    if name == "llama-index":  # LangChain would merge such texts into a call without a name, so they are quoted there
        assert whole.malformed == broken


@in_both_frameworks
def test_parallel_calls_can_be_turned_off_and_arguments_have_the_types_of_the_schema(name: str) -> None:
    text = '{"name": "count", "arguments": {"number": "3"}}'
    chat = CHATS[name](ScriptedModel(answer=f"{text}\n{text}"))
    history = chat.turns(("user", "Count"), ("assistant", "Wait."))
    assert chat.call_tools([count], history).calls == [("count", {"number": 3})] * 2
    assert chat.call_tools([count], history, parallel_tool_calls=False).calls == [("count", {"number": 3})]


@in_both_frameworks
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")  # LlamaIndex's own
async def test_results_of_tools_get_into_the_next_prompt(name: str) -> None:
    model = ScriptedModel()
    if name == "langchain":
        chat = ChatAntiphon(language_model=model, max_tokens=8).bind_tools([count])
        answer = chat.invoke("Count to 3")
        assert len(answer.tool_calls[0]["id"] or "") == 9
        history = [HumanMessage("Count to 3"), answer, ToolMessage("1 2 3", tool_call_id=answer.tool_calls[0]["id"])]
        assert chat.invoke(history).content
    for streaming in (False, True) if name == "llama-index" else ():
        llm = AntiphonLLM(language_model=model, max_tokens=6)
        agent = FunctionAgent(tools=[FunctionTool.from_defaults(count)], llm=llm, streaming=streaming)
        result: Any = await agent.run("Count to 3", memory=ChatMemoryBuffer.from_defaults())
        assert [(call.tool_name, call.tool_kwargs) for call in result.tool_calls] == [("count", {"number": 3})]
        assert result.response.content
    assert "<|im_start|>tool\n1 2 3<|im_end|>" in model.asked[-1][0]
    assert CALL in model.asked[-1][0]
