"""References in LlamaIndex reach the decoder and are cited; none gets into another call or an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from llama_index.core import PromptTemplate, Settings, get_response_synthesizer
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import CitationBlock
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import RetrieverTool
from llama_index.core.workflow import Event, StartEvent, StopEvent, Workflow, step
from pydantic import PrivateAttr

from antiphon.accel import LanguageModel
from antiphon.integrations.llama_index import AntiphonLLM, AntiphonRetriever
from antiphon.integrations.llama_index.nodes import node_of, passage_of
from antiphon.pipelines import Rag, chat_prompt
from antiphon.retrieval import Passage, Retriever
from tests.conftest import TEXTS
from tests.integrations.request_recorder import RequestRecorder, recorded_model
from tests.integrations.scripted_model import ScriptedModel

pytestmark = pytest.mark.slow

SECRET = "The password of the hive is propolis"
NODE = TextNode(id_="hive", text=SECRET, metadata={"source": "hive.txt"})
QUESTION = "How many eggs does a queen lay?"


@pytest.fixture(autouse=True)
def _own_tokenizer(tiny: LanguageModel) -> Any:
    """Let LlamaIndex measure prompts with the model's own tokenizer."""
    Settings.tokenizer = tiny.tokenizer.encode
    yield
    Settings.tokenizer = None  # type: ignore[assignment]


def recorded_llm() -> tuple[AntiphonLLM, RequestRecorder]:
    model, recorder = recorded_model()
    return AntiphonLLM(language_model=model, max_tokens=2), recorder


@pytest.mark.parametrize("given", [SECRET, NODE, NodeWithScore(node=NODE, score=0.5), Passage.at("a", 0, SECRET)])
async def test_references_reach_the_decoder_from_every_source(given: Any) -> None:
    llm, recorder = recorded_llm()
    plain, carrying = [ChatMessage("Where?")], [ChatMessage("Where?", additional_kwargs={"references": [given]})]
    for messages, handed in ((plain, {"references": [given]}), (carrying, {})):
        llm.chat(messages, **handed)
        list(llm.stream_chat(messages, **handed))
        await llm.achat(messages, **handed)
        _ = [piece async for piece in await llm.astream_chat(messages, **handed)]
    template = PromptTemplate("Where is {it}?")
    llm.predict(template, it="it", references=[given])
    list(llm.stream(template, it="it", references=[given]))
    await llm.apredict(template, it="it", references=[given])
    _ = [piece async for piece in await llm.astream(template, it="it", references=[given])]
    llm.complete("Where?", references=[given])
    list(llm.stream_complete("Where?", references=[given]))
    await llm.acomplete("Where?", references=[given])
    _ = [piece async for piece in await llm.astream_complete("Where?", references=[given])]
    assert [references for _, references in recorder.requests] == [(SECRET,)] * 16
    llm.chat(plain)
    assert recorder.requests[-1][1] == (), "references of a template do not remain after its call"


@pytest.mark.parametrize("given", [SECRET, NODE, 3, [3]])
def test_references_that_are_neither_texts_nor_nodes_raise(given: Any) -> None:
    llm, _ = recorded_llm()
    with pytest.raises(TypeError, match=r"references.* is of type"):
        llm.chat([ChatMessage("Where?")], references=given)


class RecordedEvents(BaseEventHandler):
    """Records all events."""

    seen: ClassVar[list[str]] = []

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.append(event.model_dump_json() + repr(event))


class RecordedSpans(BaseSpanHandler[Any]):
    """Records the arguments of all spans."""

    _seen: list[str] = PrivateAttr(default_factory=list)

    def new_span(self, id_: str, bound_args: Any, *arguments: Any, **kwargs: Any) -> None:
        self._seen.append(str(bound_args))

    def prepare_to_exit_span(self, *arguments: Any, **kwargs: Any) -> None:
        return None

    def prepare_to_drop_span(self, *arguments: Any, **kwargs: Any) -> None:
        return None


async def test_events_and_spans_contain_no_reference_text() -> None:
    root = get_dispatcher("root")
    handler, spans = RecordedEvents(), RecordedSpans()
    handlers, span_handlers = list(root.event_handlers), list(root.span_handlers)
    root.add_event_handler(handler)
    root.add_span_handler(spans)
    try:
        llm, recorder = recorded_llm()
        plain = [ChatMessage("Where?")]
        carrying = [ChatMessage("Where?", additional_kwargs={"references": [NODE]})]
        for messages, handed in ((plain, {"references": [NODE]}), (carrying, {})):
            llm.chat(messages, **handed)
            list(llm.stream_chat(messages, **handed))
            await llm.achat(messages, **handed)
            _ = [piece async for piece in await llm.astream_chat(messages, **handed)]
        await llm.acomplete("Where?", references=[SECRET])
        llm.predict(PromptTemplate("Where?"), references=[NODE])
    finally:
        root.event_handlers, root.span_handlers = handlers, span_handlers
    assert [references for _, references in recorder.requests] == [(SECRET,)] * 10
    assert len(handler.seen) > 20
    assert len(spans._seen) >= 4
    assert "propolis" not in str(handler.seen)
    assert "propolis" not in str(spans._seen)


# In every engine the prompt contains the passages, so drafts can copy from them; references are additional.

MODES = (
    ResponseMode.COMPACT,
    ResponseMode.REFINE,
    ResponseMode.TREE_SUMMARIZE,
    ResponseMode.SIMPLE_SUMMARIZE,
    ResponseMode.ACCUMULATE,
)


def prompts_of(recorder: RequestRecorder) -> str:
    return "\n".join(prompt for prompt, _ in recorder.requests)


@pytest.mark.parametrize("mode", MODES)
async def test_prompts_of_a_query_engine_contain_the_passages(mode: ResponseMode, retriever: Retriever) -> None:
    llm, recorder = recorded_llm()
    found = AntiphonRetriever(retriever, k=2)
    for streaming in (False, True):
        synthesizer = get_response_synthesizer(llm=llm, response_mode=mode, streaming=streaming)
        engine = RetrieverQueryEngine(found, synthesizer)
        if streaming and mode is ResponseMode.ACCUMULATE:
            continue  # LlamaIndex does not stream it
        answer: Any = engine.query(QUESTION)
        assert streaming == hasattr(answer, "response_gen")
        assert "".join(answer.response_gen) if streaming else str(answer)
        assert all(passage.text in prompts_of(recorder) for passage in retriever.search(QUESTION, 2))
        recorder.requests.clear()
    await RetrieverQueryEngine(found, get_response_synthesizer(llm=llm, response_mode=mode)).aquery(QUESTION)
    assert all(passage.text in prompts_of(recorder) for passage in retriever.search(QUESTION, 2))


@pytest.mark.parametrize("mode", [ResponseMode.COMPACT, ResponseMode.REFINE, ResponseMode.TREE_SUMMARIZE])
async def test_references_passed_to_a_synthesizer_reach_every_call(mode: ResponseMode, retriever: Retriever) -> None:
    llm, recorder = recorded_llm()
    nodes = AntiphonRetriever(retriever, k=2).retrieve(QUESTION)
    synthesizer = get_response_synthesizer(llm=llm, response_mode=mode)
    synthesizer.synthesize(QUESTION, nodes, references=nodes)
    await synthesizer.asynthesize(QUESTION, nodes, references=nodes)
    streaming = get_response_synthesizer(llm=llm, response_mode=mode, streaming=True)
    answer: Any = streaming.synthesize(QUESTION, nodes, references=nodes)
    list(answer.response_gen)
    assert len(recorder.requests) >= 3
    assert {references for _, references in recorder.requests} == {tuple(node.node.get_content() for node in nodes)}


@pytest.mark.parametrize("kind", [ContextChatEngine, CondensePlusContextChatEngine])
async def test_prompts_of_a_chat_engine_contain_the_passages(kind: Any, retriever: Retriever) -> None:
    llm, recorder = recorded_llm()

    def engine() -> Any:
        memory = ChatMemoryBuffer.from_defaults(llm=llm)
        return kind.from_defaults(AntiphonRetriever(retriever, k=2), llm=llm, memory=memory)

    engine().chat(QUESTION)
    list(engine().stream_chat(QUESTION).response_gen)
    await engine().achat(QUESTION)
    found = retriever.search(QUESTION, 2)
    assert len(recorder.requests) == 3
    assert all(passage.text in prompt for passage in found for prompt, _ in recorder.requests)


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")  # raised by LlamaIndex itself
async def test_prompts_of_an_agent_contain_its_tools_results(retriever: Retriever) -> None:
    model = ScriptedModel()
    tool = RetrieverTool.from_defaults(AntiphonRetriever(retriever, k=2), name="search", description="Search.")
    agent = FunctionAgent(tools=[tool], llm=AntiphonLLM(language_model=model, max_tokens=2), streaming=False)
    await agent.run(f"'{QUESTION}'", memory=ChatMemoryBuffer.from_defaults())
    assert all(passage.text in model.asked[-1][0] for passage in retriever.search(QUESTION, 2))


class Retrieved(Event):
    nodes: list[NodeWithScore]


async def test_a_workflow_can_pass_retrieved_nodes_as_references(retriever: Retriever) -> None:
    llm, recorder = recorded_llm()

    class Asking(Workflow):
        @step
        async def retrieve(self, event: StartEvent) -> Retrieved:
            return Retrieved(nodes=await AntiphonRetriever(retriever, k=2).aretrieve(event.question))

        @step
        async def answer(self, event: Retrieved) -> StopEvent:
            return StopEvent(result=await llm.achat([ChatMessage(QUESTION)], references=event.nodes))

    await Asking().run(question=QUESTION)
    found = tuple(passage.text for passage in retriever.search(QUESTION, 2))
    assert [references for _, references in recorder.requests] == [found]


TENANTS = range(40)


def contract(tenant: int) -> TextNode:
    return TextNode(text=f"The rent of the hall is paid on the first of the month to account {tenant:05d}.")


def asked(tenant: int) -> str:
    return f"When does account {tenant:05d} get the rent?"


def references_for(tenant: int) -> dict[str, Any]:
    return {} if tenant % 4 == 3 else {"references": [contract(tenant)]}


async def gathered(llm: AntiphonLLM) -> None:
    await asyncio.gather(*(llm.achat([ChatMessage(asked(tenant))], **references_for(tenant)) for tenant in TENANTS))


async def templates(llm: AntiphonLLM) -> None:
    template = PromptTemplate("{question}")
    await asyncio.gather(
        *(llm.apredict(template, question=asked(tenant), **references_for(tenant)) for tenant in TENANTS)
    )


async def one_synthesizer(llm: AntiphonLLM) -> None:
    synthesizer = get_response_synthesizer(llm=llm)
    node = NodeWithScore(node=TextNode(text="Rents."))
    await asyncio.gather(
        *(synthesizer.asynthesize(asked(tenant), [node], **references_for(tenant)) for tenant in TENANTS)
    )


async def open_streams(llm: AntiphonLLM) -> None:
    template = PromptTemplate("{question}")
    streams = [llm.stream(template, question=asked(tenant), **references_for(tenant)) for tenant in TENANTS]
    for stream in [*streams, *streams[::-1]]:
        next(iter(stream), None)


FLOWS: dict[str, Callable[[AntiphonLLM], Any]] = {
    "gather": gathered,
    "templates": templates,
    "one synthesizer": one_synthesizer,
    "open streams": open_streams,
}


@pytest.mark.parametrize("flow", FLOWS)
async def test_no_tenants_references_reach_another_tenants_call(flow: str) -> None:
    llm, recorder = recorded_llm()
    await FLOWS[flow](llm)
    assert len(recorder.requests) == len(TENANTS)
    for prompt, references in recorder.requests:
        tenant = next(tenant for tenant in TENANTS if asked(tenant) in prompt)
        assert references == (() if tenant % 4 == 3 else (contract(tenant).text,))


def citations_of(message: ChatMessage) -> list[tuple[Any, ...]]:
    return [
        (block.additional_location_info["start"], block.title, block.cited_content.text)  # type: ignore[union-attr]
        for block in message.blocks
        if isinstance(block, CitationBlock)
    ]


def test_answers_have_citation_blocks_whole_and_streamed(passages: list[Passage]) -> None:
    llm = AntiphonLLM(language_model=ScriptedModel(answer=f"As is written: {TEXTS[1]}"))
    nodes = [node_of(passage) for passage in passages]
    expected = [(15, "bees.txt", TEXTS[1][:-1])]
    assert citations_of(llm.chat([ChatMessage("What?")], references=nodes).message) == expected
    assert citations_of(list(llm.stream_chat([ChatMessage("What?")], references=nodes))[-1].message) == expected
    assert citations_of(llm.chat([ChatMessage("What?")]).message) == []


def test_llama_index_gives_the_text_citations_and_steps_of_the_python_api(
    retriever: Retriever, tiny: LanguageModel
) -> None:
    plain = Rag(retriever, tiny, k=2, prompt=chat_prompt).ask(QUESTION, max_new_tokens=60)
    nodes = AntiphonRetriever(retriever, k=2).retrieve(QUESTION)
    assert [passage_of(node) for node in nodes] == list(plain.passages)
    turns: Any = chat_prompt(QUESTION, plain.passages).content
    messages = [ChatMessage(turn["content"], role=turn["role"]) for turn in turns]
    answer = AntiphonLLM(language_model=tiny, max_tokens=60).chat(messages, references=nodes)
    assert answer.message.content == plain.text
    raw: Any = answer.raw
    assert raw["usage"]["total_tokens"] == plain.usage.total_tokens
    assert (raw["steps"]["steps"], raw["steps"]["accepted"]) == (plain.steps.steps, plain.steps.accepted)
    assert citations_of(answer.message) == [(note.start, note.source, note.text) for note in plain.citations]
