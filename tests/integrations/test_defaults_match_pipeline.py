"""With default settings both frameworks return the passages and the answer of `Rag`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.schema import QueryBundle

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon, retrieval_chain
from antiphon.integrations.llama_index import AntiphonQueryEngine
from antiphon.integrations.llama_index.cited_engines import CitedResponse, CitedStreamingResponse
from antiphon.pipelines import Rag
from antiphon.pipelines.request_plan import RequestPlan, plan_request
from antiphon.retrieval import Retriever
from tests.tiny import byte_tokenizer, tiny_model

QUESTION = "How many eggs does a queen lay?"


@pytest.fixture(scope="module")
def reader() -> LanguageModel:
    """A random model whose configuration names the prompt format 'reader'."""
    model: Any = tiny_model(max_position_embeddings=4096)
    model.config.prompt_format = "reader"
    return LanguageModel(model, byte_tokenizer(), name="tiny-reader")


async def test_a_langchain_chain_gives_the_answer_of_rag(retriever: Retriever, reader: LanguageModel) -> None:
    answer = Rag(retriever, reader).ask(QUESTION, max_new_tokens=12)
    chat = ChatAntiphon(language_model=reader, max_tokens=12)
    chain = chat.with_retriever(AntiphonRetriever(retriever=retriever))
    for found in (chain.invoke(QUESTION), await chain.ainvoke(QUESTION)):
        assert found["answer"].content == answer.text
        assert [document.page_content for document in found["context"]] == [each.text for each in answer.passages]


def test_the_response_prefix_of_the_plan_reaches_the_chat_model(
    retriever: Retriever, reader: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, plans = "[1] Wax", list[RequestPlan]()

    def plan_with_prefix(*arguments: Any, **options: Any) -> RequestPlan:
        plans.append(replace(plan_request(*arguments, **options), response_prefix=prefix))
        return plans[-1]

    monkeypatch.setattr(retrieval_chain, "plan_request", plan_with_prefix)
    chat = ChatAntiphon(language_model=reader, max_tokens=12)
    found = chat.with_retriever(AntiphonRetriever(retriever=retriever)).invoke(QUESTION)
    prompt = plans[0].prompt.content
    assert found["answer"].content == reader.generate(prompt, max_new_tokens=12, response_prefix=prefix).text
    assert found["answer"].content != reader.generate(prompt, max_new_tokens=12).text


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_llama_index_query_engine_gives_the_answer_of_rag(
    retriever: Retriever, reader: LanguageModel, streaming: bool
) -> None:
    answer = Rag(retriever, reader).ask(QUESTION, max_new_tokens=12)
    engine = AntiphonQueryEngine(Rag(retriever, reader), streaming=streaming, max_new_tokens=12)
    response = await engine.aquery(QUESTION)
    assert isinstance(response, CitedResponse | CitedStreamingResponse)
    assert str(response) == answer.text
    assert [node.get_content() for node in response.source_nodes] == [each.text for each in answer.passages]
    assert len(response.citations) == len(answer.citations)
    nodes = engine.retrieve(QueryBundle(QUESTION))
    assert {node.node.node_id for node in nodes} == {passage.id for passage in answer.passages}
