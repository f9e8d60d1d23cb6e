"""A model that was made for one form of prompt: its own template in both frameworks, and a warning for any other."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.llms import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.integrations.llama_index import AntiphonLLM, AntiphonQueryEngine
from antiphon.integrations.llama_index.citing import CitedResponse, CitedStreamingResponse
from antiphon.pipelines import Rag
from antiphon.retrieval import Retriever
from tests.integrations.quoting import ContractNodes, Contracts, own, question, quoted
from tests.integrations.scripted import Scripted

WARNING = "was made for the prompt format 'reader'"


@pytest.fixture
def reader() -> Any:
    model = Scripted(answer=quoted)
    model.model.config.prompt_format = "reader"
    Settings.tokenizer = model.tokenizer.encode
    yield model
    Settings.tokenizer = None  # type: ignore[assignment]


def test_a_frameworks_own_prompt_is_warned_of_once(reader: Scripted) -> None:
    for ask in (
        ChatAntiphon(language_model=reader).invoke,
        lambda text: AntiphonLLM(language_model=reader).chat([ChatMessage(text)]),
    ):
        with pytest.warns(UserWarning, match=WARNING):
            ask("Which bees?")
    chat = ChatAntiphon(language_model=reader)
    with pytest.warns(UserWarning, match=WARNING):
        chat.invoke("Which bees?")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chat.invoke("Which bees?")
        ChatAntiphon(language_model=Scripted(answer="Bees.")).invoke("Which bees?")


def test_the_readers_own_template_is_used_by_a_query_engine_and_asked_without_a_warning(reader: Scripted) -> None:
    llm = AntiphonLLM(language_model=reader)
    synthesizer = get_response_synthesizer(llm=llm, text_qa_template=llm.prompt_template())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = RetrieverQueryEngine(ContractNodes(), synthesizer).query(question(0))
        ChatAntiphon(language_model=reader).with_retriever(Contracts()).invoke(question(0))
    assert own(0)[0] in str(response)
    prompt = reader.asked[0][0]
    assert "You answer with sentences quoted from the passages, each with the number of its passage." in prompt
    assert f"Question: {question(0)}" in prompt
    assert "Passages:" in prompt


def _tiny_reader() -> LanguageModel:
    model: Any = tiny_model(max_position_embeddings=4096)
    model.config.prompt_format = "reader"
    return LanguageModel(model, byte_tokenizer(), name="tiny-reader")


async def test_both_frameworks_give_the_passages_and_the_answer_of_the_pipeline(retriever: Retriever) -> None:
    reader = _tiny_reader()
    asked = "How many eggs does a queen lay?"
    answer = Rag(retriever, reader).ask(asked, max_new_tokens=12)
    chat = ChatAntiphon(language_model=reader, max_tokens=12)
    chain = chat.with_retriever(AntiphonRetriever(retriever=retriever))
    for found in (chain.invoke(asked), await chain.ainvoke(asked)):
        assert found["answer"].content == answer.text
        assert [document.page_content for document in found["context"]] == [each.text for each in answer.passages]
    for streaming in (False, True):
        engine = AntiphonQueryEngine(Rag(retriever, reader), streaming=streaming, max_new_tokens=12)
        for response in (engine.query(asked), await engine.aquery(asked)):
            assert str(response) == answer.text
            assert [node.get_content() for node in response.source_nodes] == [each.text for each in answer.passages]
            assert isinstance(response, CitedResponse | CitedStreamingResponse)
            assert len(response.citations) == len(answer.citations)
        assert {node.node.node_id for node in engine.retrieve(QueryBundle(asked))} == {p.id for p in answer.passages}
