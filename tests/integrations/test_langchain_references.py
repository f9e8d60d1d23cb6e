"""References in LangChain reach the decoder and are cited; none gets into another call or a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import create_retriever_tool
from langchain_core.tracers import BaseTracer, Run
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import AntiphonLLM, AntiphonRetriever, ChatAntiphon
from antiphon.integrations.langchain.documents import document_of
from antiphon.pipelines import Rag, chat_prompt
from antiphon.retrieval import Passage, Retriever
from tests.conftest import TEXTS
from tests.integrations.request_recorder import recorded_model
from tests.integrations.scripted_model import ScriptedModel

SECRET = "The password of the hive is propolis"
DOCUMENT = Document(SECRET, id="hive", metadata={"source": "hive.txt"})
SAVED = {"id": "hive", "metadata": {"source": "hive.txt"}, "page_content": SECRET, "type": "Document"}


def tool_turn(artifact: Any) -> list[Any]:
    """Return a conversation in which a tool has returned an artifact."""
    call = {"name": "search", "args": {}, "id": "1"}
    returned = ToolMessage("found", tool_call_id="1", artifact=artifact)
    return [HumanMessage("Where?"), AIMessage("", tool_calls=[call]), returned]


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a text": ("Where?", {"references": [SECRET]}),
    "a document": ("Where?", {"references": [DOCUMENT]}),
    "a saved document": ("Where?", {"references": [SAVED]}),
    "a passage": ("Where?", {"references": [Passage.at("hive.txt", 0, SECRET)]}),
    "a message": ([HumanMessage("Where?", additional_kwargs={"references": [DOCUMENT]})], {}),
    "a message saved": ([HumanMessage("Where?", additional_kwargs={"references": [SAVED]})], {}),
    "a tool's documents": (tool_turn([DOCUMENT]), {}),
    "a tool's document": (tool_turn(DOCUMENT), {}),
    "a tool's documents, saved": (tool_turn([SAVED, {"score": 1}]), {}),
    "all at once": (tool_turn([DOCUMENT]), {"references": [SECRET]}),
}


@pytest.mark.parametrize("given_as", SOURCES)
async def test_references_reach_the_decoder_from_every_source(given_as: str) -> None:
    model, recorder = recorded_model()
    chat = ChatAntiphon(language_model=model, max_tokens=2)
    prompt, given = SOURCES[given_as]
    chat.invoke(prompt, **given)
    list(chat.stream(prompt, **given))
    await chat.ainvoke(prompt, **given)
    _ = [piece async for piece in chat.astream(prompt, **given)]
    chat.bind(**given).batch([prompt])
    assert [references for _, references in recorder.requests] == [(SECRET,)] * 5


@pytest.mark.parametrize("artifact", [None, "a text of the tool's own", 3, {"score": 1}, ["a", "b"]])
def test_artifacts_other_than_documents_are_ignored(artifact: Any) -> None:
    model, recorder = recorded_model()
    ChatAntiphon(language_model=model, max_tokens=1).invoke(tool_turn(artifact))
    assert recorder.requests[0][1] == ()


@pytest.mark.parametrize("given", [SECRET, DOCUMENT, 3, [3], {"a": 1}])
def test_references_that_are_neither_texts_nor_documents_raise(given: Any) -> None:
    model, _ = recorded_model()
    with pytest.raises(TypeError, match=r"references.* is of type"):
        ChatAntiphon(language_model=model).invoke("Where?", references=given)


async def test_an_llm_accepts_references() -> None:
    model, recorder = recorded_model()
    llm = AntiphonLLM(language_model=model, max_tokens=2)
    llm.invoke("Where?", references=[DOCUMENT])
    llm.generate(["Where?", "When?"], references=[SECRET])
    list(llm.stream("Where?", references=[DOCUMENT]))
    await llm.ainvoke("Where?", references=[DOCUMENT])
    _ = [piece async for piece in llm.astream("Where?", references=[SECRET])]
    assert [references for _, references in recorder.requests] == [(SECRET,)] * 6


class RecordingTracer(BaseTracer):
    """A tracer that records all data that tracers receive."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    def _persist_run(self, run: Run) -> None:
        self.kept.append(dumps(run.inputs) + dumps(run.outputs) + dumps(run.extra) + str(run.serialized))


@pytest.mark.parametrize("given_as", SOURCES)
async def test_traces_of_a_chat_model_contain_no_reference_text(given_as: str) -> None:
    model, recorder = recorded_model()
    prompt, given = SOURCES[given_as]
    traces = RecordingTracer()
    chat = ChatAntiphon(language_model=model, max_tokens=2, callbacks=[traces])
    chat.invoke(prompt, **given)
    list(chat.stream(prompt, **given))
    _ = [piece async for piece in chat.astream(prompt, **given)]
    assert len(traces.kept) == 3
    assert len(recorder.requests) == 3
    assert "propolis" not in str(traces.kept)


async def test_traces_of_an_llm_contain_no_reference_text() -> None:
    model, recorder = recorded_model()
    traces = RecordingTracer()
    llm = AntiphonLLM(language_model=model, max_tokens=2, callbacks=[traces])
    llm.invoke("Where?", references=[DOCUMENT])
    list(llm.stream("Where?", references=[SECRET]))
    _ = [piece async for piece in llm.astream("Where?", references=[DOCUMENT])]
    assert len(traces.kept) == len(recorder.requests) == 3
    assert "propolis" not in str(traces.kept)


# Forty tenants with nearly equal contracts: each call may use its own tenant's references only.

TENANTS = range(40)


def contract(tenant: int) -> str:
    return f"The rent of the hall is paid on the first of the month to account {tenant:05d}, and no other day."


def found(tenant: int) -> list[Document]:
    return [Document(contract(tenant))]


def asked(tenant: int) -> str:
    return f"When does account {tenant:05d} get the rent?"


def input_of(tenant: int) -> tuple[Any, dict[str, Any]]:
    """Three in four tenants pass their contract, each in another way; the fourth has no references."""
    documents = found(tenant)
    if tenant % 4 == 0:
        return asked(tenant), {"references": documents}
    if tenant % 4 == 1:
        return [HumanMessage(asked(tenant), additional_kwargs={"references": documents})], {}
    if tenant % 4 == 2:
        return [HumanMessage(asked(tenant)), *tool_turn(documents)[1:]], {}
    return asked(tenant), {}


class State(TypedDict, total=False):
    tenant: int
    documents: list[Document]
    answer: str


def graph_of(chat: ChatAntiphon) -> Any:
    """Return one graph for all tenants: one node retrieves, one answers."""

    def retrieve(state: State) -> State:
        return {"documents": found(state["tenant"]) if state["tenant"] % 4 != 3 else []}

    def generate(state: State) -> State:
        answer = chat.invoke(asked(state["tenant"]), references=state["documents"])
        return {"answer": str(answer.content)}

    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("generate", generate)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "generate")
    return graph.compile()


Flow = Callable[[ChatAntiphon], Any]


def step(chat: ChatAntiphon) -> RunnableLambda[int, str]:
    def ask(tenant: int) -> str:
        prompt, given = input_of(tenant)
        return str(chat.invoke(prompt, **given).content)

    async def aask(tenant: int) -> str:
        prompt, given = input_of(tenant)
        return str((await chat.ainvoke(prompt, **given)).content)

    return RunnableLambda(ask, afunc=aask)


def streamed(chat: ChatAntiphon) -> None:
    streams = []
    for tenant in TENANTS:
        prompt, given = input_of(tenant)
        streams.append(chat.stream(prompt, **given))
    for stream in [*streams, *streams[::-1]]:  # forty streams are open at once
        next(stream, None)


async def gathered(chat: ChatAntiphon) -> None:
    await asyncio.gather(*(step(chat).ainvoke(tenant) for tenant in TENANTS))


def threaded(chat: ChatAntiphon) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(step(chat).invoke, TENANTS))


def in_one_run(chat: ChatAntiphon) -> None:
    """Answer all tenants within one root run, which mixes their contexts and run trees."""
    batch: RunnableLambda[list[int], list[str]] = RunnableLambda(step(chat).batch)
    batch.invoke(list(TENANTS))


async def graphed(chat: ChatAntiphon) -> None:
    graph = graph_of(chat)
    await asyncio.gather(*(graph.ainvoke({"tenant": tenant}) for tenant in TENANTS))


FLOWS: dict[str, Flow] = {
    "batch": lambda chat: step(chat).batch(list(TENANTS)),
    "abatch": lambda chat: step(chat).abatch(list(TENANTS)),
    "stream": streamed,
    "gather": gathered,
    "threads": threaded,
    "one root run": in_one_run,
    "one shared graph": graphed,
}


@pytest.mark.parametrize("flow", FLOWS)
async def test_no_tenants_references_reach_another_tenants_call(flow: str) -> None:
    model, recorder = recorded_model()
    chat = ChatAntiphon(language_model=model, max_tokens=2)
    done = FLOWS[flow](chat)
    if asyncio.iscoroutine(done):
        await done
    assert len(recorder.requests) == len(TENANTS)
    for prompt, references in recorder.requests:
        tenant = next(tenant for tenant in TENANTS if asked(tenant) in prompt)
        assert references == (() if tenant % 4 == 3 else (contract(tenant),))


def cited(answer: AIMessage) -> list[tuple[Any, ...]]:
    """Return the citations in the standard annotations of an answer."""
    notes = [note for block in answer.content_blocks for note in block.get("annotations", [])]  # type: ignore[attr-defined]
    return [
        (note["start_index"], note["end_index"], note["title"], note["cited_text"], note["extras"]["source_start"])
        for note in notes
    ]


QUOTING = f"As is written: {TEXTS[1]} And {TEXTS[2]}"


def whole(chunks: Sequence[Any]) -> Any:
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_citations_are_standard_annotations_whole_and_streamed(version: str, passages: list[Passage]) -> None:
    chat = ChatAntiphon(language_model=ScriptedModel(answer=QUOTING), output_version=version)
    documents = [document_of(passage) for passage in passages]
    answer = chat.invoke("What is written?", references=documents)
    spans = [(QUOTING.index(text), text, source) for text, source in ((TEXTS[1][:-1], 100), (TEXTS[2][:-1], 200))]
    expected = [(start, start + len(text), "bees.txt", text, source) for start, text, source in spans]
    assert cited(answer) == expected
    assert isinstance(answer.content, str if version == "v0" else list)
    assert answer.text == QUOTING
    assert cited(whole(list(chat.stream("What is written?", references=documents)))) == expected
    assert cited(chat.invoke("What is written?")) == []


def test_a_document_without_source_is_cited_by_its_number_among_the_references() -> None:
    chat = ChatAntiphon(language_model=ScriptedModel(answer=QUOTING))
    answer = chat.invoke("What is written?", references=["something else", TEXTS[2]])
    assert [note["extras"]["passage"] for note in answer.additional_kwargs["citations"]] == [2]


def test_langchain_gives_the_text_citations_and_steps_of_the_python_api(
    retriever: Retriever, tiny: LanguageModel
) -> None:
    question = "How many eggs does a queen lay?"
    plain = Rag(retriever, tiny, k=2, prompt=chat_prompt).ask(question, max_new_tokens=60)
    documents = AntiphonRetriever(retriever=retriever, k=2).invoke(question)
    assert [document.id for document in documents] == [passage.id for passage in plain.passages]
    messages: Any = chat_prompt(question, plain.passages).content
    prompt = ChatPromptTemplate.from_messages([(turn["role"], "{" + turn["role"] + "}") for turn in messages])
    chain = prompt | ChatAntiphon(language_model=tiny, max_tokens=60).bind(references=documents)
    answer: Any = chain.invoke({turn["role"]: turn["content"] for turn in messages})
    assert answer.content == plain.text
    assert answer.usage_metadata["total_tokens"] == plain.usage.total_tokens
    steps = answer.response_metadata["steps"]
    assert (steps["steps"], steps["accepted"]) == (plain.steps.steps, plain.steps.accepted)
    assert cited(answer) == [
        (note.start, note.end, note.source, note.text, note.source_start) for note in plain.citations
    ]


def test_an_agents_retriever_tool_provides_references_and_a_checkpointer_keeps_them(retriever: Retriever) -> None:
    model = ScriptedModel()
    search = create_retriever_tool(
        AntiphonRetriever(retriever=retriever, k=2), "search", "Search.", response_format="content_and_artifact"
    )
    agent: Any = create_agent(ChatAntiphon(language_model=model, max_tokens=4), [search], checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    found = tuple(passage.text for passage in retriever.search("How many 'eggs of a queen'?", 2))
    agent.invoke({"messages": [("user", "How many 'eggs of a queen'?")]}, thread)
    assert [set(references) for _, references in model.asked] == [set(), set(found)]
    assert all(text in model.asked[1][0] for text in found)
    agent.invoke({"messages": [("user", "Say that again.")]}, thread)
    assert all(set(found) <= set(references) for _, references in model.asked[2:])
