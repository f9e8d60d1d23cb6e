"""Thinking in LangChain and LlamaIndex: in their own fields, streamed and whole, and switched by fields and calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.langchain.chat_messages import chat_messages as langchain_turns
from antiphon.integrations.llama_index import AntiphonLLM
from antiphon.integrations.llama_index.chat_messages import chat_messages as llama_index_turns
from tests.accel.thinking_models import thinking_tokenizer, writing

OUTPUT = "<think>\nBees do.\n</think>\n\nSo it is."


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return writing(thinking_tokenizer("decides"), OUTPUT)


def test_langchain_has_the_thinking_in_reasoning_content(model: LanguageModel) -> None:
    chat = ChatAntiphon(language_model=model)
    answer = chat.invoke("Why?")
    assert (answer.content, answer.additional_kwargs["reasoning_content"]) == ("So it is.", "Bees do.")
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_token_details"]["reasoning"] > len("Bees do.")
    whole: Any = None
    for chunk in chat.stream("Why?"):
        whole = chunk if whole is None else whole + chunk
    assert (whole.content, whole.additional_kwargs["reasoning_content"]) == ("So it is.", "Bees do.")

    async def streamed() -> str:
        return "".join([chunk.additional_kwargs.get("reasoning_content", "") async for chunk in chat.astream("Why?")])

    assert asyncio.run(streamed()) == "Bees do."


def test_langchain_reports_an_end_inside_the_thinking(model: LanguageModel) -> None:
    answer = ChatAntiphon(language_model=model, max_tokens=12).invoke("Why?")
    assert (answer.content, answer.response_metadata["ended_in_thinking"]) == ("", True)


def test_langchain_turns_thinking_off_by_field_and_call(model: LanguageModel) -> None:
    closed = len("<think>\n\n</think>\n\n")

    def prompt_tokens(chat: ChatAntiphon, **options: Any) -> int:
        answer = chat.invoke("Why?", max_tokens=1, **options)
        assert answer.usage_metadata is not None
        return answer.usage_metadata["input_tokens"]

    chat = ChatAntiphon(language_model=model)
    usual = prompt_tokens(chat)
    assert prompt_tokens(chat, thinking=False) - usual == closed
    assert prompt_tokens(ChatAntiphon(language_model=model, thinking=False)) - usual == closed
    variables = {"enable_thinking": False}
    assert prompt_tokens(ChatAntiphon(language_model=model, template_variables=variables)) - usual == closed


def test_llama_index_has_the_thinking_in_a_thinking_block(model: LanguageModel) -> None:
    llm = AntiphonLLM(language_model=model)
    question = [ChatMessage("Why?")]

    def parts(message: ChatMessage) -> tuple[str, str | None]:
        thought = [block.content or "" for block in message.blocks if isinstance(block, ThinkingBlock)]
        return "".join(thought), message.content

    assert parts(llm.chat(question).message) == ("Bees do.", "So it is.")
    states = list(llm.stream_chat(question))
    assert parts(states[-1].message) == ("Bees do.", "So it is.")
    assert "".join(state.additional_kwargs.get("thinking_delta", "") for state in states) == "Bees do."
    assert "".join(state.delta or "" for state in states) == "So it is."
    assert llm.complete("Why?").text == "So it is."
    assert "".join(state.delta or "" for state in llm.stream_complete("Why?")) == "So it is."
    off = llm.chat(question, thinking=False, max_tokens=1)
    assert off.raw is not None
    usual: Any = llm.chat(question, max_tokens=1).raw
    assert off.raw["usage"]["prompt_tokens"] - usual["usage"]["prompt_tokens"] == len("<think>\n\n</think>\n\n")


def test_earlier_thinking_is_passed_to_the_template() -> None:
    thought = AIMessage("So.", additional_kwargs={"reasoning_content": "Bees."})
    assert langchain_turns([HumanMessage("Why?"), thought])[1]["reasoning_content"] == "Bees."
    standard = AIMessage([{"type": "reasoning", "reasoning": "Bees."}, {"type": "text", "text": "So."}])
    [turn] = langchain_turns([standard])
    assert (turn["content"], turn["reasoning_content"]) == ("So.", "Bees.")
    blocks = ChatMessage(role="assistant", blocks=[ThinkingBlock(content="Bees."), *ChatMessage("So.").blocks])
    [turn] = llama_index_turns([blocks])
    assert (turn["content"], turn["reasoning_content"]) == ("So.", "Bees.")
