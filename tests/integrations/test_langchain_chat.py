"""ChatAntiphon and AntiphonLLM: one test for each known bug of LangChain's local models."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import LLMResult
from langchain_core.tools import tool

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import BOS, byte_tokenizer, tiny_model
from antiphon.integrations.langchain import AntiphonLLM, ChatAntiphon
from antiphon.integrations.langchain.outputs import usage
from tests.integrations.request_recorder import cancel_midway, recorded_forward_passes
from tests.integrations.scripted_model import ScriptedModel

pytestmark = pytest.mark.slow

QUESTION = "What do the passages say of bees?"
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def chat(tiny: LanguageModel) -> ChatAntiphon:
    return ChatAntiphon(language_model=tiny, max_tokens=24)


@pytest.fixture
def llm(tiny: LanguageModel) -> AntiphonLLM:
    return AntiphonLLM(language_model=tiny, max_tokens=24)


def text_of(model: BaseLanguageModel[Any], answer: Any) -> str:
    return answer if isinstance(answer, str) else str(answer.content)


@pytest.mark.parametrize("kind", ["chat", "llm"])
async def test_invoke_stream_and_batch_return_the_answer_without_the_prompt(
    kind: str, tiny: LanguageModel, request: pytest.FixtureRequest
) -> None:
    model: Any = request.getfixturevalue(kind)
    prompt: Any = MESSAGES if kind == "chat" else QUESTION
    text = tiny.generate(prompt, max_new_tokens=24).text
    assert QUESTION not in text
    assert text_of(model, model.invoke(QUESTION)) == text
    assert "".join(text_of(model, piece) for piece in model.stream(QUESTION)) == text
    assert [text_of(model, each) for each in model.batch([QUESTION, QUESTION])] == [text, text]
    assert text_of(model, await model.ainvoke(QUESTION)) == text
    assert "".join([text_of(model, piece) async for piece in model.astream(QUESTION)]) == text
    assert [text_of(model, each) for each in await model.abatch([QUESTION, QUESTION])] == [text, text]


@pytest.mark.parametrize("kind", ["chat", "llm"])
def test_text_ends_right_before_a_stop_string_of_several_characters(kind: str, request: pytest.FixtureRequest) -> None:
    model: Any = request.getfixturevalue(kind)
    whole = text_of(model, model.invoke(QUESTION))
    stop = whole[5:8]
    expected = whole[: whole.index(stop)]
    assert text_of(model, model.invoke(QUESTION, stop=[stop])) == expected
    assert "".join(text_of(model, piece) for piece in model.stream(QUESTION, stop=[stop])) == expected
    always = type(model)(language_model=model.language_model, max_tokens=24, stop=[stop])
    assert text_of(model, always.invoke(QUESTION)) == expected
    assert text_of(model, always.invoke(QUESTION, stop=[])) == whole


def test_parameters_of_a_call_override_those_of_the_model(chat: ChatAntiphon, tiny: LanguageModel) -> None:
    answer = chat.invoke(QUESTION, max_tokens=5, temperature=0.9, seed=3)
    expected = tiny.generate(MESSAGES, max_new_tokens=5, temperature=0.9, seed=3)
    assert answer.content == expected.text
    assert answer.usage_metadata == usage(expected)
    assert chat.bind(max_tokens=7).invoke(QUESTION).usage_metadata["output_tokens"] == 7  # type: ignore[index]


def test_another_model_named_in_a_call_is_loaded_once(tmp_path: Path, tiny: LanguageModel) -> None:
    other = LanguageModel(tiny_model(seed=1, max_position_embeddings=4096), tiny.tokenizer)
    other.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    name = str(tmp_path)
    for model in (ChatAntiphon(language_model=tiny, max_tokens=8), AntiphonLLM(language_model=tiny, max_tokens=8)):
        prompt: Any = MESSAGES if isinstance(model, ChatAntiphon) else QUESTION
        assert text_of(model, model.invoke(QUESTION, model=name)) == other.generate(prompt, max_new_tokens=8).text
        assert text_of(model, model.invoke(QUESTION)) == tiny.generate(prompt, max_new_tokens=8).text
        assert model.language_model_named(name) is model.language_model_named(name)


def test_unknown_parameters_raise_in_a_call_and_at_construction(chat: ChatAntiphon) -> None:
    with pytest.raises(TypeError, match="no parameter 'max_length'; known are"):
        chat.invoke(QUESTION, max_length=3)
    with pytest.raises(ValueError, match="max_lenght"):
        ChatAntiphon(language_model=chat.language_model, max_lenght=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="language_model=, or model="):
        AntiphonLLM()  # type: ignore[call-arg]


def test_usage_model_name_finish_reason_and_steps_are_reported_once(chat: ChatAntiphon, tiny: LanguageModel) -> None:
    expected = tiny.generate(MESSAGES, max_new_tokens=24)
    answer = chat.invoke(QUESTION)
    chunks = list(chat.stream(QUESTION))
    reporting = [chunk for chunk in chunks if chunk.usage_metadata or chunk.response_metadata.get("model_name")]
    assert reporting == [chunks[-1]]
    for message in (answer, chunks[-1]):
        assert message.usage_metadata == usage(expected)
        assert message.response_metadata["model_name"] == "tiny"
        assert message.response_metadata["finish_reason"] == "length"
        assert message.response_metadata["steps"]["tokens"] == 24
        assert message.response_metadata["steps"]["steps"] == expected.steps.steps
    result: LLMResult = AntiphonLLM(language_model=tiny, max_tokens=4).generate([QUESTION])
    facts = result.generations[0][0].generation_info or {}
    assert (facts["model_name"], facts["finish_reason"], facts["usage"]["output_tokens"]) == ("tiny", "length", 4)


async def test_the_event_loop_is_not_blocked_during_generation(chat: ChatAntiphon) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    with recorded_forward_passes(chat.language_model) as seen:
        await chat.ainvoke(QUESTION)
    ticking.cancel()
    assert ticks > 2 * len(seen)


async def test_leaving_a_stream_stops_generation(chat: ChatAntiphon) -> None:
    with recorded_forward_passes(chat.language_model) as seen:
        pieces = chat.astream(QUESTION, drafter="nothing", max_tokens=400)
        async for _ in pieces:
            break
        await pieces.aclose()  # type: ignore[attr-defined]
        spent = len(seen)
        for _ in chat.stream(QUESTION, drafter="nothing", max_tokens=400):
            break
        await asyncio.sleep(0.1)
        assert len(seen) <= 2 * spent
        assert spent < 20


@pytest.mark.parametrize("kind", ["chat", "llm"])
async def test_a_cancelled_call_stops_and_frees_its_kv_cache(kind: str, request: pytest.FixtureRequest) -> None:
    model: Any = request.getfixturevalue(kind)
    with recorded_forward_passes(model.language_model) as seen:
        error = await cancel_midway(model.ainvoke(QUESTION, drafter="nothing", max_tokens=2000), seen)
        gc.collect()
        assert seen[-1].cache() is None
        assert error.__traceback__, "the traceback still refers to every frame of the call"
    assert text_of(model, await model.ainvoke(QUESTION)) == text_of(model, model.invoke(QUESTION))


@pytest.mark.parametrize("kind", ["chat", "llm"])
def test_a_prompt_starts_with_exactly_one_bos_token(kind: str, request: pytest.FixtureRequest) -> None:
    model: Any = request.getfixturevalue(kind)
    with recorded_forward_passes(model.language_model) as seen:
        model.invoke(QUESTION, max_tokens=1)
    assert seen[0].ids.count(BOS) == 1
    assert seen[0].ids[0] == BOS


@pytest.mark.timeout(30)
async def test_an_error_in_generation_reaches_the_caller_and_the_next_call_works() -> None:
    broken = ChatAntiphon(language_model=LanguageModel(tiny_model(), byte_tokenizer()), max_tokens=50)
    broken.invoke(QUESTION, max_tokens=2)
    calls = 0

    def fail(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise MemoryError("no memory left")

    assert isinstance(broken.language_model, LanguageModel)
    hook = broken.language_model.model.register_forward_pre_hook(fail)
    with pytest.raises(MemoryError, match="no memory left"):
        list(broken.stream(QUESTION, drafter="nothing"))
    with pytest.raises(MemoryError, match="no memory left"):
        _ = [piece async for piece in broken.astream(QUESTION, drafter="nothing")]
    with pytest.raises(MemoryError, match="no memory left"):
        await broken.ainvoke(QUESTION, drafter="nothing")
    hook.remove()
    assert broken.invoke(QUESTION, max_tokens=5).content


async def test_a_prompt_longer_than_the_context_window_raises(chat: ChatAntiphon) -> None:
    with pytest.raises(ValueError, match="context window"):
        chat.invoke("x" * 5000)
    with pytest.raises(ValueError, match="context window"):
        await chat.ainvoke("x" * 5000)


def test_a_timeout_stops_generation(chat: ChatAntiphon) -> None:
    with pytest.raises(TimeoutError, match=r"1e-06 seconds"):
        chat.invoke(QUESTION, timeout=0.000001)
    with pytest.raises(ValueError, match="timeout is 0"):
        chat.invoke(QUESTION, timeout=0)
    assert chat.invoke(QUESTION, timeout=60).content == chat.invoke(QUESTION).content


def test_prompts_of_a_batch_share_forward_passes(llm: AntiphonLLM) -> None:
    prompts: list[Any] = [f"{QUESTION} {number}" for number in range(4)]
    with recorded_forward_passes(llm.language_model) as seen:
        alone = [llm.invoke(prompt) for prompt in prompts]
        spent = len(seen)
        together = llm.batch(prompts)
        assert len(seen) - spent < 0.6 * spent
    assert together == alone


def test_images_in_messages_raise(chat: ChatAntiphon) -> None:
    image = {"type": "image", "url": "https://example.org/bee.png"}
    with pytest.raises(ValueError, match=r"messages\[0\] contains image"):
        chat.invoke([HumanMessage([{"type": "text", "text": "What is this?"}, image])])


def test_tokens_are_counted_with_the_models_own_tokenizer(chat: ChatAntiphon, llm: AntiphonLLM) -> None:
    assert chat.get_num_tokens("bees") == llm.get_num_tokens("bees") == 4
    counted = chat.get_num_tokens_from_messages([HumanMessage(QUESTION)])
    assert counted == chat.invoke(QUESTION, max_tokens=1).usage_metadata["input_tokens"]  # type: ignore[index]


@tool
def count(number: int) -> str:
    """Count to a number."""
    return " ".join(map(str, range(1, number + 1)))


@tool
def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello {name}"


def test_tools_are_in_the_prompt_and_tool_calls_are_returned_by_invoke_and_stream() -> None:
    model = ScriptedModel()
    chat = ChatAntiphon(language_model=model, max_tokens=8).bind_tools([count, greet])
    answer = chat.invoke("Count to 3")
    assert '"name": "count"' in model.asked[0][0]
    assert '"name": "greet"' in model.asked[0][0]
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("count", {"number": 3})]
    chunks = list(chat.stream("Count to 3"))
    assert [chunk.content for chunk in chunks] == [""], "tool calls are not streamed as text"
    whole = chunks[0]
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("count", {"number": 3})]
    history = [HumanMessage("Count to 3"), answer, ToolMessage("1 2 3", tool_call_id=answer.tool_calls[0]["id"])]
    assert chat.invoke(history).content
    assert "<|im_start|>tool\n1 2 3<|im_end|>" in model.asked[-1][0]
    assert '{"name": "count", "arguments": {"number": 3}}' in model.asked[-1][0]


def test_a_forced_tool_choice_starts_the_answer_with_a_tool_call() -> None:
    model = ScriptedModel()
    chat = ChatAntiphon(language_model=model, max_tokens=8)

    def opened(choice: Any) -> str:
        chat.bind_tools([count, greet], tool_choice=choice).invoke("Count to 3")
        return model.asked[-1][0].rpartition("<|im_start|>assistant\n")[2]

    assert opened("auto") == opened(None) == ""
    assert opened("any") == opened(True) == '<tool_call>\n{"name": "'
    assert opened("greet") == '<tool_call>\n{"name": "greet", "arguments": '
    assert opened({"type": "function", "function": {"name": "greet"}}) == opened("greet")
    assert '"count"' not in model.asked[-1][0], "tools other than the chosen one are not offered"
    chosen = chat.bind_tools([count, greet], tool_choice="greet").invoke("Greet 'Ada'")
    assert [(call["name"], call["args"]) for call in chosen.tool_calls] == [("greet", {"name": "Ada"})]
    assert chat.bind_tools([count], tool_choice="none").invoke("Count to 3").tool_calls == []
    assert "<tools>" not in model.asked[-1][0]
    with pytest.raises(ValueError, match="'other', which is no tool's name"):
        opened("other")


def test_tools_raise_if_the_chat_template_does_not_support_them(chat: ChatAntiphon) -> None:
    with pytest.raises(ValueError, match="does not write tools"):
        chat.bind_tools([count]).invoke(QUESTION)


CALL = '{"name": "count", "arguments": {"number": 3}}'


@pytest.mark.parametrize(
    ("text", "content", "calls", "broken"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", "", 1, 0),
        (f"Let me see.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}", "Let me see.\n", 2, 0),
        ('{"name": "count", "parameters": {"number": 3}}', "", 1, 0),
        (f"[{CALL}, {CALL}]", "", 2, 0),
        (f"[TOOL_CALLS] [{CALL}]", "", 1, 0),
        ('{"name": "count", "arguments": "{\\"number\\": 3}"}', "", 1, 0),
        ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', 0, 0),
        ("[1] Bees live in colonies.", "[1] Bees live in colonies.", 0, 0),
        ("a <tool_ and a b", "a <tool_ and a b", 0, 0),
        ("<tool_call>{count}</tool_call>", None, 0, 1),
        ("<tool_call>3</tool_call>", None, 0, 1),
        ('<tool_call>{"arguments": {"number": 3}}</tool_call>', None, 0, 1),
        ('<tool_call>{"name": "", "arguments": {"number": 3}}</tool_call>', None, 0, 1),
        ('<tool_call>{"name": null, "arguments": {"number": 3}}</tool_call>', None, 0, 1),
        ('<tool_call>{"name": ["count"], "arguments": {"number": 3}}</tool_call>', None, 0, 1),
        ('<tool_call>{"name": "count", "arguments": {"number": ', None, 0, 1),
        ('<tool_call>{"name": "count"', None, 0, 1),
        ("<tool_call>{}</tool_call>", None, 0, 1),
        ("<tool_call></tool_call>", None, 0, 1),
        (f"<tool_call>{CALL}</tool_call><tool_call>{{}}</tool_call>", "<tool_call>{}</tool_call>", 1, 1),
    ],
)
def test_tool_calls_are_parsed_whole_and_streamed(text: str, content: str | None, calls: int, broken: int) -> None:
    content = text if content is None else content  # what cannot be parsed stays content
    chat = ChatAntiphon(language_model=ScriptedModel(answer=text)).bind_tools([count])
    history = [HumanMessage("Count"), AIMessage("Wait.")]
    answer = chat.invoke(history)
    assert answer.content == content
    assert [call["args"] for call in answer.tool_calls] == [{"number": 3}] * calls
    assert len(answer.invalid_tool_calls) == broken
    chunks: Any = list(chat.stream(history))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == content
    assert [call["args"] for call in whole.tool_calls] == [{"number": 3}] * calls
    assert len(whole.invalid_tool_calls) == broken
    assert [call["name"] for call in whole.tool_calls] == ["count"] * calls
    assert [call["args"] for call in whole.invalid_tool_calls] == [call["args"] for call in answer.invalid_tool_calls]
    assert all(content.startswith("".join(c.content for c in chunks[:end])) for end in range(len(chunks)))


def test_the_default_model_comes_from_the_environment_or_an_error_says_how_to_pass_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTIPHON_MODEL", raising=False)
    with pytest.raises(ValueError, match="No model was given; pass language_model="):
        ChatAntiphon()  # type: ignore[call-arg]
    monkeypatch.setenv("ANTIPHON_MODEL", "./nowhere")
    with pytest.raises(ValueError, match="There is no model folder"):
        ChatAntiphon()  # type: ignore[call-arg]


def test_parallel_calls_can_be_turned_off_and_arguments_have_the_types_of_the_schema() -> None:
    text = '{"name": "count", "arguments": {"number": "3"}}'
    chat = ChatAntiphon(language_model=ScriptedModel(answer=f"{text}\n{text}"))
    history = [HumanMessage("Count"), AIMessage("Wait.")]
    both = chat.bind_tools([count]).invoke(history)
    assert [call["args"] for call in both.tool_calls] == [{"number": 3}] * 2
    assert all(len(call["id"] or "") == 9 for call in both.tool_calls)
    one = chat.bind_tools([count], parallel_tool_calls=False).invoke(history)
    assert [call["args"] for call in one.tool_calls] == [{"number": 3}]
