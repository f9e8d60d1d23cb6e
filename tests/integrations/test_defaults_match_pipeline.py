"""With default settings both frameworks return the passages and answers of `Rag` and of `Chat`."""

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from llama_index.core.schema import QueryBundle

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon, retrieval_chain
from antiphon.integrations.llama_index import AntiphonChatEngine, AntiphonQueryEngine
from antiphon.integrations.llama_index.cited_engines import CitedResponse, CitedStreamingResponse
from antiphon.pipelines import Chat, Rag
from antiphon.pipelines.request_plan import RequestPlan, plan_request
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import Retriever
from tests.pipelines.conftest import printable_model, reader
from tests.tiny import byte_tokenizer

pytestmark = pytest.mark.slow

__all__ = ["reader"]

QUESTION = "How many eggs does a queen lay?"
QUESTIONS = (QUESTION, "And how long does honey keep?")


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


@pytest.mark.parametrize("prompt_format", [None, "reader"])
def test_a_conversation_has_the_same_answers_on_every_path(retriever: Retriever, prompt_format: str | None) -> None:
    model = printable_model()
    model.config.prompt_format = prompt_format
    language_model = LanguageModel(model, byte_tokenizer(), name="tiny")
    rag = Rag(retriever, language_model, k=2)
    chat = Chat(rag)
    expected = [chat.ask(question, max_new_tokens=12).text for question in QUESTIONS]
    assert rag.ask(QUESTIONS[1], max_new_tokens=12).text != expected[1], "the follow-up question needs the first one"

    chain = ChatAntiphon(language_model=language_model, max_tokens=12).with_retriever(
        AntiphonRetriever(retriever=retriever, k=2)
    )
    history: list[Any] = []
    for question, text in zip(QUESTIONS, expected, strict=True):
        answer = chain.invoke({"question": question, "chat_history": history})["answer"]
        assert answer.content == text
        history += [("user", question), answer]

    engine = AntiphonChatEngine(rag, max_new_tokens=12)
    assert [str(engine.chat(question)) for question in QUESTIONS] == expected

    messages: list[dict[str, str]] = []
    service = make_service(language_model, ServerSettings(), name="tiny", collections=[Collection("docs", rag)])
    with TestClient(create_app(service)) as client:
        for question, text in zip(QUESTIONS, expected, strict=True):
            messages.append({"role": "user", "content": question})
            body = {"model": "tiny+docs", "messages": messages, "max_tokens": 12}
            response = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            assert response["choices"][0]["message"]["content"] == text
            messages.append({"role": "assistant", "content": text})
