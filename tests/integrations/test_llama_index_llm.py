"""AntiphonLLM for LlamaIndex: one test for each known bug of LlamaIndex's local LLMs, and tools in an agent."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import BOS, byte_tokenizer, tiny_model
from antiphon.integrations.llama_index import AntiphonLLM
from tests.integrations.request_recorder import cancel_midway, recorded_forward_passes
from tests.integrations.scripted_model import ScriptedModel

QUESTION = "What do the passages say of bees?"
TURNS = [{"role": "user", "content": QUESTION}]
MESSAGES = [ChatMessage(QUESTION)]


@pytest.fixture
def llm(tiny: LanguageModel) -> AntiphonLLM:
    return AntiphonLLM(language_model=tiny, max_tokens=24)


async def test_chat_and_complete_agree_sync_async_and_streamed(llm: AntiphonLLM, tiny: LanguageModel) -> None:
    expected = tiny.generate(TURNS, max_new_tokens=24).text
    assert llm.chat(MESSAGES).message.content == expected
    assert (await llm.achat(MESSAGES)).message.content == expected
    streamed = list(llm.stream_chat(MESSAGES))
    assert "".join(str(piece.delta) for piece in streamed) == streamed[-1].message.content == expected
    pieces = [piece async for piece in await llm.astream_chat(MESSAGES)]
    assert "".join(str(piece.delta) for piece in pieces) == pieces[-1].message.content == expected
    assert llm.complete(QUESTION).text == (await llm.acomplete(QUESTION)).text == expected
    assert "".join(str(piece.delta) for piece in llm.stream_complete(QUESTION)) == expected
    assert "".join([str(piece.delta) async for piece in await llm.astream_complete(QUESTION)]) == expected


def test_a_model_without_a_chat_template_receives_text() -> None:
    plain = AntiphonLLM(language_model=LanguageModel(tiny_model(), byte_tokenizer(chat=False)), max_tokens=9)
    assert not plain.metadata.is_chat_model
    assert plain.complete(QUESTION).text == plain.language_model.generate(QUESTION, max_new_tokens=9).text
    written = f"user: {QUESTION}\nassistant: "
    assert plain.chat(MESSAGES).message.content == plain.language_model.generate(written, max_new_tokens=9).text


def test_a_formatted_prompt_is_continued_unchanged(llm: AntiphonLLM, tiny: LanguageModel) -> None:
    expected = tiny.generate(QUESTION, max_new_tokens=24).text
    assert llm.complete(QUESTION, formatted=True).text == expected


def test_metadata_describes_the_model(llm: AntiphonLLM) -> None:
    metadata = llm.metadata
    assert (metadata.context_window, metadata.num_output, metadata.model_name) == (4096, 24, "tiny")
    assert metadata.is_chat_model
    assert not metadata.is_function_calling_model, "its chat template writes no tools"
    assert AntiphonLLM(language_model=ScriptedModel()).metadata.is_function_calling_model


def test_stop_strings_and_parameters_of_a_call_are_applied(llm: AntiphonLLM, tiny: LanguageModel) -> None:
    whole = str(llm.chat(MESSAGES).message.content)
    stop = whole[5:8]
    assert llm.chat(MESSAGES, stop=[stop]).message.content == whole[: whole.index(stop)]
    assert list(llm.stream_chat(MESSAGES, stop=[stop]))[-1].message.content == whole[: whole.index(stop)]
    drawn = tiny.generate(TURNS, max_new_tokens=5, temperature=0.9, seed=3)
    assert llm.chat(MESSAGES, max_tokens=5, temperature=0.9, seed=3).message.content == drawn.text
    with pytest.raises(TypeError, match="no parameter 'max_length'"):
        llm.chat(MESSAGES, max_length=3)
    with pytest.raises(ValueError, match="max_lenght"):
        AntiphonLLM(language_model=tiny, max_lenght=3)  # type: ignore[call-arg]


async def test_usage_model_finish_reason_and_steps_are_reported_and_counted(tiny: LanguageModel) -> None:
    counter = TokenCountingHandler(tokenizer=tiny.tokenizer.encode)
    llm = AntiphonLLM(language_model=tiny, max_tokens=24, callback_manager=CallbackManager([counter]))
    expected = tiny.generate(TURNS, max_new_tokens=24)
    raw: Any = llm.chat(MESSAGES).raw
    assert raw["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    assert (raw["usage"]["completion_tokens"], raw["model"], raw["finish_reason"]) == (24, "tiny", "length")
    assert raw["steps"]["steps"] == expected.steps.steps
    list(llm.stream_chat(MESSAGES))
    await llm.achat(MESSAGES)
    assert counter.total_llm_token_count == 3 * expected.usage.total_tokens


def test_a_prompt_starts_with_exactly_one_bos_token(llm: AntiphonLLM) -> None:
    with recorded_forward_passes(llm.language_model) as seen:
        llm.chat(MESSAGES, max_tokens=1)
        llm.complete(QUESTION, formatted=True, max_tokens=1)
    assert [forward.ids.count(BOS) for forward in seen] == [1, 1]


async def test_a_cancelled_call_stops_and_frees_its_kv_cache(llm: AntiphonLLM) -> None:
    with recorded_forward_passes(llm.language_model) as seen:
        await cancel_midway(llm.achat(MESSAGES, drafter="nothing", max_tokens=2000), seen)
        gc.collect()
        assert seen[-1].cache() is None


@pytest.mark.timeout(30)
async def test_an_error_in_generation_reaches_the_caller(llm: AntiphonLLM) -> None:
    broken = AntiphonLLM(language_model=LanguageModel(tiny_model(), byte_tokenizer()), max_tokens=50)
    broken.chat(MESSAGES, max_tokens=2)

    def fail(*arguments: Any) -> None:
        raise MemoryError("no memory left")

    assert isinstance(broken.language_model, LanguageModel)
    hook = broken.language_model.model.register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        list(broken.stream_chat(MESSAGES))
    with pytest.raises(MemoryError):
        _ = [piece async for piece in await broken.astream_chat(MESSAGES)]
    hook.remove()
    assert broken.chat(MESSAGES, max_tokens=5).message.content


def test_long_prompts_images_and_timeouts_raise(llm: AntiphonLLM) -> None:
    with pytest.raises(ValueError, match="context window"):
        llm.complete("x" * 5000)
    with pytest.raises(ValueError, match=r"messages\[0\] contains ImageBlock"):
        llm.chat([ChatMessage([TextBlock(text="What?"), ImageBlock(url="https://example.org/bee.png")])])
    with pytest.raises(TimeoutError):
        llm.chat(MESSAGES, timeout=0.000001)


def count(number: int) -> str:
    """Count to a number."""
    return " ".join(map(str, range(1, number + 1)))


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")  # LlamaIndex's own
async def test_an_agent_calls_tools_and_reads_their_results() -> None:
    model = ScriptedModel()
    llm = AntiphonLLM(language_model=model, max_tokens=6)
    for streaming in (False, True):
        agent = FunctionAgent(tools=[FunctionTool.from_defaults(count)], llm=llm, streaming=streaming)
        answer: Any = await agent.run("Count to 3", memory=ChatMemoryBuffer.from_defaults())
        assert [(call.tool_name, call.tool_kwargs) for call in answer.tool_calls] == [("count", {"number": 3})]
        assert '"name": "count"' in model.asked[-2][0]
        assert "<|im_start|>tool\n1 2 3<|im_end|>" in model.asked[-1][0]
        assert '{"name": "count", "arguments": {"number": 3}}' in model.asked[-1][0]
        assert answer.response.content


def test_a_required_tool_call_starts_the_answer() -> None:
    model = ScriptedModel()
    llm = AntiphonLLM(language_model=model, max_tokens=6)
    tools = [FunctionTool.from_defaults(count)]
    response = llm.chat_with_tools(tools, "Count to 3", tool_required=True)
    assert model.asked[0][0].endswith('<tool_call>\n{"name": "count", "arguments": ')
    assert [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
    with pytest.raises(ValueError, match="calls no tool"):
        llm.get_tool_calls_from_response(llm.chat([ChatMessage("Hello", role=MessageRole.USER)]))


def test_a_function_calling_program_returns_an_object_of_its_class() -> None:
    class Bee(BaseModel):
        """A bee."""

        name: str
        age: int

    llm = AntiphonLLM(language_model=ScriptedModel(), max_tokens=6)
    program = FunctionCallingProgram.from_defaults(
        output_cls=Bee, prompt_template_str="A bee of the name 'Maya', aged {age}", llm=llm
    )
    assert program(age=3) == Bee(name="Maya", age=3)


class Maya(BaseModel):
    """A bee."""

    name: str
    age: int


def test_tool_required_forces_a_call_whatever_the_tool_choice() -> None:
    model = ScriptedModel()
    llm = AntiphonLLM(language_model=model, max_tokens=6)
    llm.chat_with_tools([FunctionTool.from_defaults(count)], "Count to 3", tool_required=True, tool_choice=None)
    assert model.asked[0][0].endswith('<tool_call>\n{"name": "count", "arguments": ')
    llm.chat_with_tools([FunctionTool.from_defaults(count)], "Count to 3", tool_required=True, tool_choice="count")
    assert model.asked[1][0].endswith('<tool_call>\n{"name": "count", "arguments": ')


async def test_malformed_tool_calls_are_reported() -> None:
    llm = AntiphonLLM(language_model=ScriptedModel(answer="<tool_call>{count}</tool_call>"), max_tokens=6)
    tools = [FunctionTool.from_defaults(count)]
    history = [ChatMessage("Count to 3"), ChatMessage("Wait.", role=MessageRole.ASSISTANT)]
    response = llm.chat_with_tools(tools, chat_history=history)
    assert response.message.additional_kwargs["invalid_tool_calls"][0]["text"] == "{count}"
    with pytest.raises(ValueError, match=r"calls no tool that can be read: '\{count\}'"):
        llm.get_tool_calls_from_response(response)


def test_parallel_calls_can_be_turned_off() -> None:
    text = '{"name": "count", "arguments": {"number": "3"}}'
    llm = AntiphonLLM(language_model=ScriptedModel(answer=f"{text}\n{text}"))
    history = [ChatMessage("Count"), ChatMessage("Wait.", role=MessageRole.ASSISTANT)]
    for allowed in (True, False):
        answer = llm.chat_with_tools(
            [FunctionTool.from_defaults(count)], chat_history=history, allow_parallel_tool_calls=allowed
        )
        assert [call.tool_kwargs for call in llm.get_tool_calls_from_response(answer)] == [{"number": 3}] * (
            1 + allowed
        )
