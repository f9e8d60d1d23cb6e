"""Citations without plumbing in LlamaIndex: query and chat engines cite the sources that each response names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
)
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.tools import QueryEngineTool

from antiphon.accel import LanguageModel
from antiphon.integrations.llama_index import AntiphonLLM, citations_of, with_citations
from tests.integrations.quoting import TENANTS, ContractNodes, own, question, quoted
from tests.integrations.scripted import Scripted


@pytest.fixture(autouse=True)
def _own_tokenizer(tiny: LanguageModel) -> Any:
    """LlamaIndex measures prompts by the model's own tokenizer."""
    Settings.tokenizer = tiny.tokenizer.encode
    yield
    Settings.tokenizer = None  # type: ignore[assignment]


def ours() -> AntiphonLLM:
    return AntiphonLLM(language_model=Scripted(answer=quoted), model="scripted")


def querying(mode: str, streaming: bool, llm: AntiphonLLM) -> Any:
    synthesizer = get_response_synthesizer(llm=llm, response_mode=mode, streaming=streaming)  # type: ignore[arg-type]
    return RetrieverQueryEngine(ContractNodes(), synthesizer)


def transformed(streaming: bool, llm: AntiphonLLM) -> Any:
    return TransformQueryEngine(querying("compact", streaming, llm), IdentityQueryTransform())


def chatting(kind: Any, llm: AntiphonLLM) -> Any:
    memory = ChatMemoryBuffer.from_defaults(llm=llm)
    return kind.from_defaults(ContractNodes(), llm=llm, memory=memory)


def condensing(llm: AntiphonLLM, streaming: bool = False) -> Any:
    memory = ChatMemoryBuffer.from_defaults(llm=llm)
    return CondenseQuestionChatEngine.from_defaults(querying("compact", streaming, llm), llm=llm, memory=memory)


QUERIES: dict[str, Callable[[bool, AntiphonLLM], Any]] = {
    "compact": lambda streaming, llm: querying("compact", streaming, llm),
    "refine": lambda streaming, llm: querying("refine", streaming, llm),
    "tree_summarize": lambda streaming, llm: querying("tree_summarize", streaming, llm),
    "simple_summarize": lambda streaming, llm: querying("simple_summarize", streaming, llm),
    "transformed": transformed,
}
CHATS: dict[str, Callable[[AntiphonLLM], Any]] = {
    "context": lambda llm: chatting(ContextChatEngine, llm),
    "condense plus context": lambda llm: chatting(CondensePlusContextChatEngine, llm),
    "condense question": condensing,
}


def expect_own(tenant: int, response: Any) -> None:
    text, where = own(tenant)
    assert [(block.title, block.cited_content.text) for block in response.citations] == [(where, text[:-1])]


@pytest.mark.parametrize("shape", QUERIES)
async def test_every_query_engine_cites_whole_and_streamed(shape: str) -> None:
    whole, streaming = (with_citations(QUERIES[shape](flag, ours())) for flag in (False, True))
    for tenant in (0, 3):
        expect_own(tenant, whole.query(question(tenant)))
        expect_own(tenant, await whole.aquery(question(tenant)))
        response: Any = streaming.query(question(tenant))
        with pytest.raises(RuntimeError, match="The stream has not ended"):
            _ = response.citations
        assert own(tenant)[0] in "".join(response.response_gen)
        expect_own(tenant, response)
        later: Any = await streaming.aquery(question(tenant))
        assert own(tenant)[0] in "".join([piece async for piece in later.response_gen])
        expect_own(tenant, later)


@pytest.mark.parametrize("shape", CHATS)
async def test_every_chat_engine_cites_whole_and_streamed(shape: str) -> None:
    for tenant in (0, 3):
        expect_own(tenant, with_citations(CHATS[shape](ours())).chat(question(tenant)))
        expect_own(tenant, await with_citations(CHATS[shape](ours())).achat(question(tenant)))
        if shape == "condense question":
            continue  # its query engine would have to stream; see below
        response = with_citations(CHATS[shape](ours())).stream_chat(question(tenant))
        assert own(tenant)[0] in "".join(response.response_gen)
        expect_own(tenant, response)
        later = await with_citations(CHATS[shape](ours())).astream_chat(question(tenant))
        assert own(tenant)[0] in "".join([piece async for piece in later.async_response_gen()])
        expect_own(tenant, later)


def test_a_condensing_chat_streams_its_citations_too() -> None:
    response = with_citations(condensing(ours(), streaming=True)).stream_chat(question(0))
    assert own(0)[0] in "".join(response.response_gen)
    expect_own(0, response)


@pytest.mark.parametrize("shape", QUERIES)
async def test_forty_tenants_of_one_engine_are_cited_their_own(shape: str) -> None:
    engine = with_citations(QUERIES[shape](False, ours()))
    responses = await asyncio.gather(*(engine.aquery(question(tenant)) for tenant in TENANTS))
    for tenant, response in enumerate(responses):
        expect_own(tenant, response)
    streaming = with_citations(QUERIES[shape](True, ours()))
    open_streams: list[Any] = [streaming.query(question(tenant)) for tenant in TENANTS]
    for response in open_streams:
        list(response.response_gen)
    for tenant, response in enumerate(open_streams):
        expect_own(tenant, response)


@pytest.mark.parametrize("shape", CHATS)
async def test_forty_chats_at_once_are_cited_their_own(shape: str) -> None:
    llm = ours()
    engines = [with_citations(CHATS[shape](llm)) for _ in TENANTS]
    responses = await asyncio.gather(*(engine.achat(question(tenant)) for tenant, engine in enumerate(engines)))
    for tenant, response in enumerate(responses):
        expect_own(tenant, response)


def test_an_engine_that_cites_is_an_engine_still() -> None:
    engine = with_citations(querying("compact", False, ours()))
    tool = QueryEngineTool.from_defaults(engine, name="rents", description="Rents.")
    output = tool.call(question(4))
    expect_own(4, output.raw_output)
    assert engine.get_prompts()
    assert [node.node.metadata["source"] for node in engine.query(question(4)).source_nodes] == [own(4)[1], "bees.md"]
    chat = with_citations(CHATS["context"](ours()))
    chat.chat(question(4))
    assert len(chat.chat_history) == 2
    chat.reset()
    assert chat.chat_history == []


def test_what_is_no_engine_is_refused_and_any_text_can_be_cited() -> None:
    with pytest.raises(TypeError, match="The engine is int; give a query engine or a chat engine"):
        with_citations(3)  # type: ignore[call-overload]
    nodes = ContractNodes().retrieve(question(0))
    assert [block.title for block in citations_of(f"So {own(0)[0]}", nodes)] == [own(0)[1]]
