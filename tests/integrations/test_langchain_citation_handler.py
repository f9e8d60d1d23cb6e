"""`CitationHandler` cites answers of any LangChain chain, agent or graph, with any model; `with_retriever` as well."""

import asyncio
import html
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langgraph.graph import START, StateGraph

from antiphon.integrations.langchain import ChatAntiphon, CitationHandler
from antiphon.integrations.langchain.citation_handler import PassagesInPrompt, unambiguous
from antiphon.retrieval import Passage
from tests.integrations.scripted_model import ScriptedModel
from tests.integrations.tenant_contracts import (
    TENANTS,
    Contracts,
    QuotingChat,
    question,
    quoting_answer,
    tenant_document,
)
from tests.table_part import part

pytestmark = pytest.mark.slow

PROMPT = ChatPromptTemplate.from_template("{context}\n\nAnswer with a sentence of this text: {question}")
INPUT = ChatPromptTemplate.from_template("{context}\n\nAnswer with a sentence of this text: {input}")


def join(documents: list[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def as_input(name: str) -> Any:
    """Wrap the question in a mapping with the chain's input key."""
    return RunnableLambda(lambda asked: {name: asked})


class State(TypedDict, total=False):
    question: str
    documents: list[Document]
    answer: str


def graph(retriever: BaseRetriever, chat: Any) -> Any:
    def retrieve(state: State) -> State:
        return {"documents": retriever.invoke(state["question"])}

    def generate(state: State) -> State:
        asked = PROMPT.invoke({"context": join(state["documents"]), "question": state["question"]})
        return {"answer": chat.invoke(asked).text}

    made = StateGraph(State)
    made.add_node("retrieve", retrieve)
    made.add_node("generate", generate)
    made.add_edge(START, "retrieve")
    made.add_edge("retrieve", "generate")
    return as_input("question") | made.compile()


def agent(retriever: BaseRetriever, chat: Any, kind: Any = "content") -> Any:
    search = create_retriever_tool(retriever, "search", "Searches.", response_format=kind)
    turns: Any = RunnableLambda(lambda asked: {"messages": [("user", asked)]})
    return turns | create_agent(chat, [search])


def stuffed(retriever: BaseRetriever, chat: Any) -> Any:
    given = {"context": retriever, "question": RunnablePassthrough()}
    return given | create_stuff_documents_chain(chat, PROMPT)


def parallel(retriever: BaseRetriever, chat: Any) -> Any:
    found = RunnableParallel(context=retriever, question=RunnablePassthrough())
    answered = RunnableLambda(lambda it: {**it, "context": join(it["context"])}) | PROMPT | chat | StrOutputParser()
    return found.assign(answer=answered)


def retrieval(retriever: BaseRetriever, chat: Any) -> Any:
    made = create_retrieval_chain(retriever, create_stuff_documents_chain(chat, INPUT))
    return as_input("input") | made


def condensed(retriever: BaseRetriever, chat: Any) -> Any:
    """A chain that first rewrites the question, and whose prompt contains passages as JSON."""
    rewritten = ChatPromptTemplate.from_template("Rewrite this question: {question}") | chat | StrOutputParser()
    asked = RunnablePassthrough.assign(other=rewritten, context=lambda it: retriever.invoke(it["question"]))
    shown: Any = RunnableLambda(lambda it: {**it, "context": str([each.model_dump_json() for each in it["context"]])})
    return as_input("question") | asked | shown | PROMPT | chat


def imperative(retriever: BaseRetriever, chat: Any) -> Any:
    def ask(asked: str) -> Any:
        return chat.invoke(PROMPT.invoke({"context": join(retriever.invoke(asked)), "question": asked}))

    return RunnableLambda(ask)


SHAPES: dict[str, Callable[[BaseRetriever, Any], Any]] = {
    "a mapping | prompt | chat": lambda retriever, chat: (
        {"context": retriever | join, "question": RunnablePassthrough()} | PROMPT | chat
    ),
    "RunnableParallel and assign": parallel,
    "a stuff chain": stuffed,
    "a retrieval chain": retrieval,
    "an agent with a retriever tool": agent,
    "a tool with artifacts": lambda retriever, chat: agent(retriever, chat, "content_and_artifact"),
    "a graph": graph,
    "a condensed question, passages as JSON": condensed,
    "a function": imperative,
    "with_retriever": lambda retriever, chat: chat.with_retriever(retriever),
    "with_retriever and a prompt": lambda retriever, chat: chat.with_retriever(retriever, prompt=PROMPT),
}


def quoting_chat() -> ChatAntiphon:
    return ChatAntiphon(language_model=ScriptedModel(answer=quoting_answer), model="scripted")


def check_own_citations(tenant: int, handler: CitationHandler) -> None:
    text, where = tenant_document(tenant)
    assert [(note["title"], note["cited_text"]) for note in handler.citations] == [(where, text[:-1])]
    assert {document.metadata["source"] for document in handler.answer.documents} <= {where, "bees.md"}
    assert handler.answer.text == f"To {tenant:02d}: {text}"


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_kind_of_chain_is_cited_whole_and_streamed_sync_and_async(shape: str) -> None:
    chain = SHAPES[shape](Contracts(), quoting_chat())
    for tenant in (0, 3):
        for way in ("invoke", "stream", "ainvoke", "astream"):
            handler = CitationHandler()
            config: Any = {"callbacks": [handler]}
            if way == "invoke":
                chain.invoke(question(tenant), config)
            elif way == "stream":
                list(chain.stream(question(tenant), config))
            elif way == "ainvoke":
                await chain.ainvoke(question(tenant), config)
            if way == "astream":
                _ = [piece async for piece in chain.astream(question(tenant), config)]
            check_own_citations(tenant, handler)


ANY_MODEL = [shape for shape in SHAPES if "with_retriever" not in shape and "tool" not in shape]


@pytest.mark.parametrize("shape", ANY_MODEL)
def test_answers_of_models_of_other_packages_are_cited(shape: str) -> None:
    handler = CitationHandler()
    SHAPES[shape](Contracts(), QuotingChat()).invoke(question(4), {"callbacks": [handler]})
    check_own_citations(4, handler)


@pytest.mark.parametrize("shape", part(SHAPES, ("a function", "a graph")))
async def test_forty_concurrent_tenants_get_citations_of_their_own_documents_only(shape: str) -> None:
    chain = SHAPES[shape](Contracts(), quoting_chat())
    handlers = [CitationHandler() for _ in TENANTS]

    def ask(tenant: int) -> None:
        chain.invoke(question(tenant), {"callbacks": [handlers[tenant]]})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, TENANTS))
    for tenant in TENANTS:
        check_own_citations(tenant, handlers[tenant])
    looped = [CitationHandler() for _ in TENANTS]
    await asyncio.gather(*(chain.ainvoke(question(t), {"callbacks": [looped[t]]}) for t in TENANTS))
    for tenant in TENANTS:
        check_own_citations(tenant, looped[tenant])


@pytest.mark.parametrize("shape", part(SHAPES, ("a function", "a graph")))
def test_one_run_that_answers_forty_tenants_cites_each_tenants_own_documents(shape: str) -> None:
    """If two tenants' documents have equal text, the retriever nearest to the answer in the run tree decides."""
    chain = SHAPES[shape](Contracts(), quoting_chat())
    handler = CitationHandler()
    batch: RunnableLambda[list[str], Any] = RunnableLambda(chain.batch)
    batch.invoke([question(tenant) for tenant in TENANTS], {"callbacks": [handler]})
    cited = [answer for answer in handler.answers if answer.citations]
    for answer in cited:
        _, where = tenant_document(int(answer.text[3:5]))
        assert {note["title"] for note in answer.citations} == {where}
        assert {document.metadata["source"] for document in answer.documents} <= {where, "bees.md"}
    # A batch of stuff chains has one parent run; equal texts of two tenants are then ambiguous and not cited.
    assert len(cited) == (20 if shape == "a stuff chain" else 40)


def test_an_answer_without_retrieved_documents_has_no_citations_even_if_others_in_the_run_have() -> None:
    chain = SHAPES["a mapping | prompt | chat"](Contracts(), quoting_chat())
    handler = CitationHandler()

    def both(asked: str) -> None:
        chain.invoke(asked)
        quoting_chat().invoke("The rent of the hall is paid on some day of the month that is not named here.")

    RunnableLambda(both).invoke(question(0), {"callbacks": [handler]})
    assert [len(answer.citations) for answer in handler.answers] == [1, 0]
    assert handler.answers[1].documents == ()


def test_reading_a_handler_raises_after_several_calls_or_none() -> None:
    chain = SHAPES["a mapping | prompt | chat"](Contracts(), quoting_chat())
    handler = CitationHandler()
    with pytest.raises(ValueError, match="No model has answered yet"):
        _ = handler.answer
    chain.batch([question(0), question(1)], {"callbacks": [handler]})
    with pytest.raises(ValueError, match=r"seen 2 calls; create a CitationHandler\(\) for each call"):
        _ = handler.citations


@pytest.mark.parametrize("prompt", [None, PROMPT])
async def test_with_retriever_returns_answer_context_and_citations_whole_and_streamed(prompt: Any) -> None:
    chain = quoting_chat().with_retriever(Contracts(), prompt=prompt)
    text, where = tenant_document(0)
    for given in (question(0), {"question": question(0)}):
        out = chain.invoke(given)
        assert list(out) == ["question", "context", "answer", "citations"]
        assert out["question"] == question(0)
        assert [each.metadata["source"] for each in out["context"]] == [where, "bees.md"]
        assert out["answer"].content == f"To 00: {text}"
        assert [note["title"] for note in out["citations"]] == [where]
    pieces = list(chain.stream(question(0)))
    assert [key for key in ("context", "answer", "citations") if sum(key in piece for piece in pieces) == 1] == [
        "context",
        "citations",
    ]
    whole: Any = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    assert whole["answer"].content == out["answer"].content
    assert whole["citations"] == out["citations"]
    assert (await chain.ainvoke(question(0)))["citations"] == out["citations"]
    parts = [piece async for piece in chain.astream(question(0))]
    assert parts[-1] == {"citations": out["citations"]}


def test_passages_are_found_in_prompts_escaped_as_json_or_html() -> None:
    passage = Passage.at("a", 0, 'Größe "und" <Maß>\nsind\tzweierlei & \\ mehr')
    for written in (json.dumps(passage.text), json.dumps(passage.text, ensure_ascii=False), html.escape(passage.text)):
        assert PassagesInPrompt(f"before {written} after").contains(passage)


def test_a_text_that_two_searches_found_in_different_documents_is_ambiguous() -> None:
    rent, wax = Passage.at("rent.md", 0, "It is due."), Passage.at("wax.md", 0, "Wax melts.")
    copy = Passage.at("copy.md", 0, rent.text)
    assert unambiguous([[rent, wax], [copy]]) == [wax]
    assert unambiguous([[rent, copy], [rent, copy]]) == [rent, copy, rent, copy], "both searches found both"
    assert unambiguous([[rent], [rent, wax]]) == [rent, rent, wax]
