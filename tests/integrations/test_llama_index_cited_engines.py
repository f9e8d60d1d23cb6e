"""Responses of LlamaIndex query and chat engines cite their own source nodes."""

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
from antiphon.integrations.llama_index import AntiphonLLM, with_citations
from tests.integrations.scripted_model import ScriptedModel
from tests.integrations.tenant_contracts import TENANTS, ContractNodes, question, quoting_answer, tenant_document
from tests.table_part import part

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_tokenizer(tiny: LanguageModel) -> Any:
    """Let LlamaIndex measure prompts with the model's own tokenizer."""
    Settings.tokenizer = tiny.tokenizer.encode
    yield
    Settings.tokenizer = None  # type: ignore[assignment]


def quoting_llm() -> AntiphonLLM:
    return AntiphonLLM(language_model=ScriptedModel(answer=quoting_answer), model="scripted")


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


def check_own_citations(tenant: int, response: Any) -> None:
    text, where = tenant_document(tenant)
    assert [(block.title, block.cited_content.text) for block in response.citations] == [(where, text[:-1])]


@pytest.mark.parametrize("shape", QUERIES)
async def test_every_query_engine_is_cited_whole_and_streamed(shape: str) -> None:
    whole, streaming = (with_citations(QUERIES[shape](flag, quoting_llm())) for flag in (False, True))
    for tenant in (0, 3):
        check_own_citations(tenant, whole.query(question(tenant)))
        check_own_citations(tenant, await whole.aquery(question(tenant)))
        response: Any = streaming.query(question(tenant))
        with pytest.raises(RuntimeError, match="The stream has not ended"):
            _ = response.citations
        assert tenant_document(tenant)[0] in "".join(response.response_gen)
        check_own_citations(tenant, response)
        later: Any = await streaming.aquery(question(tenant))
        assert tenant_document(tenant)[0] in "".join([piece async for piece in later.response_gen])
        check_own_citations(tenant, later)


@pytest.mark.parametrize("shape", CHATS)
async def test_every_chat_engine_is_cited_whole_and_streamed(shape: str) -> None:
    for tenant in (0, 3):
        check_own_citations(tenant, with_citations(CHATS[shape](quoting_llm())).chat(question(tenant)))
        check_own_citations(tenant, await with_citations(CHATS[shape](quoting_llm())).achat(question(tenant)))
        if shape == "condense question":
            continue  # needs a query engine that streams; see the next test
        response = with_citations(CHATS[shape](quoting_llm())).stream_chat(question(tenant))
        assert tenant_document(tenant)[0] in "".join(response.response_gen)
        check_own_citations(tenant, response)
        later = await with_citations(CHATS[shape](quoting_llm())).astream_chat(question(tenant))
        assert tenant_document(tenant)[0] in "".join([piece async for piece in later.async_response_gen()])
        check_own_citations(tenant, later)


def test_a_streaming_condense_question_engine_is_cited() -> None:
    response = with_citations(condensing(quoting_llm(), streaming=True)).stream_chat(question(0))
    assert tenant_document(0)[0] in "".join(response.response_gen)
    check_own_citations(0, response)


@pytest.mark.parametrize("shape", part(QUERIES, ("compact",)))
async def test_forty_concurrent_queries_of_one_engine_cite_their_own_nodes(shape: str) -> None:
    engine = with_citations(QUERIES[shape](False, quoting_llm()))
    responses = await asyncio.gather(*(engine.aquery(question(tenant)) for tenant in TENANTS))
    for tenant, response in enumerate(responses):
        check_own_citations(tenant, response)
    streaming = with_citations(QUERIES[shape](True, quoting_llm()))
    open_streams: list[Any] = [streaming.query(question(tenant)) for tenant in TENANTS]
    for response in open_streams:
        list(response.response_gen)
    for tenant, response in enumerate(open_streams):
        check_own_citations(tenant, response)


def test_a_wrapped_engine_keeps_the_engines_interface() -> None:
    engine = with_citations(querying("compact", False, quoting_llm()))
    tool = QueryEngineTool.from_defaults(engine, name="rents", description="Rents.")
    output = tool.call(question(4))
    check_own_citations(4, output.raw_output)
    assert engine.get_prompts()
    assert [node.node.metadata["source"] for node in engine.query(question(4)).source_nodes] == [
        tenant_document(4)[1],
        "bees.md",
    ]
    chat = with_citations(CHATS["context"](quoting_llm()))
    chat.chat(question(4))
    assert len(chat.chat_history) == 2
    chat.reset()
    assert chat.chat_history == []
