"""References in both frameworks reach the decoder and are cited; none gets into another call, a trace or an event."""

import copy
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.load import dumpd, dumps
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, get_buffer_string, messages_to_dict
from langchain_core.tools import create_retriever_tool
from langchain_core.tracers import BaseTracer, Run
from langgraph.checkpoint.memory import InMemorySaver
from langsmith._internal._serde import dumps_json
from langsmith.utils import deepish_copy
from llama_index.core import PromptTemplate, Settings, get_response_synthesizer
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.llms import ChatMessage
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeWithScore, TextNode
from pydantic import BaseModel, PrivateAttr

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.integrations.langchain.documents import hide_references, references_of
from antiphon.integrations.llama_index import AntiphonLLM
from antiphon.integrations.llama_index.outputs import citation_blocks
from antiphon.integrations.references import HiddenReferences
from antiphon.retrieval import Passage, Retriever
from tests.conftest import TEXTS
from tests.integrations.frameworks import CHATS, FRAMEWORKS, MODELS, Model
from tests.integrations.request_recorder import recorded_model
from tests.integrations.scripted_model import ScriptedModel
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

SECRET = "The password of the hive is propolis"
QUESTION = "How many eggs does a queen lay?"
PASSAGE = Passage.at("hive.txt", 0, SECRET)
DOCUMENT = Document(SECRET, id="hive", metadata={"source": "hive.txt"})
SAVED = {"id": "hive", "metadata": {"source": "hive.txt"}, "page_content": SECRET, "type": "Document"}
NODE = TextNode(id_="hive", text=SECRET, metadata={"source": "hive.txt"})
GIVEN: dict[str, list[Any]] = {
    "langchain": [SECRET, PASSAGE, DOCUMENT, SAVED],
    "llama-index": [SECRET, PASSAGE, NODE, NodeWithScore(node=NODE, score=0.5)],
}


class RecordingTracer(BaseTracer):
    """Records all data that LangChain's tracers receive."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def _persist_run(self, run: Run) -> None:
        self.seen.append(dumps(run.inputs) + dumps(run.outputs) + dumps(run.extra) + str(run.serialized))


class RecordedEvents(BaseEventHandler):
    """Records all events of LlamaIndex."""

    seen: ClassVar[list[str]] = []

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.append(event.model_dump_json() + repr(event))


class RecordedSpans(BaseSpanHandler[Any]):
    """Records the arguments of all spans of LlamaIndex."""

    _seen: list[str] = PrivateAttr(default_factory=list)

    def new_span(self, id_: str, bound_args: Any, *arguments: Any, **kwargs: Any) -> None:
        self._seen.append(str(bound_args))

    def prepare_to_exit_span(self, *arguments: Any, **kwargs: Any) -> None:
        return None

    def prepare_to_drop_span(self, *arguments: Any, **kwargs: Any) -> None:
        return None


@pytest.fixture
def traces() -> Iterator[list[str]]:
    """All that tracers, event handlers and span handlers of both frameworks receive."""
    root, events, spans = get_dispatcher("root"), RecordedEvents(), RecordedSpans()
    handlers, span_handlers = list(root.event_handlers), list(root.span_handlers)
    spans._seen = events.seen
    events.seen.clear()
    root.add_event_handler(events)
    root.add_span_handler(spans)
    yield events.seen
    root.event_handlers, root.span_handlers = handlers, span_handlers


async def ask_in_every_way(model: Model, prompt: Any, **given: Any) -> None:
    model.ask(prompt, **given)
    model.stream(prompt, **given)
    await model.aask(prompt, **given)
    await model.astream(prompt, **given)


def traced(name: str, language_model: LanguageModel, traces: list[str]) -> Model:
    callbacks = {"callbacks": [RecordingTracer(traces)]} if "langchain" in name else {}
    return MODELS[name](language_model, max_tokens=2, **callbacks)


@pytest.mark.parametrize("name", MODELS)
async def test_references_reach_the_decoder_from_calls_and_messages_and_no_trace(name: str, traces: list[str]) -> None:
    language_model, recorder = recorded_model()
    model = traced(name, language_model, traces)
    ways = 0
    for given in GIVEN[name.removesuffix(" text")]:
        await ask_in_every_way(model, "Where?", references=[given])
        ways += 4
        if name in CHATS:
            await ask_in_every_way(model, model.turns(("user", "Where?"), references=[given]))
            ways += 4
    assert [references for _, references in recorder.requests] == [(SECRET,)] * ways
    assert len(traces) >= ways
    assert "propolis" not in str(traces)
    model.ask("Where?")
    assert recorder.requests[-1][1] == (), "references do not remain after their call"


def tool_turn(artifact: Any) -> list[Any]:
    """Return a conversation of LangChain in which a tool has returned an artifact."""
    call = {"name": "search", "args": {}, "id": "1"}
    returned = ToolMessage("found", tool_call_id="1", artifact=artifact)
    return [HumanMessage("Where?"), AIMessage("", tool_calls=[call]), returned]


async def test_documents_of_tools_are_references_and_other_artifacts_are_not(traces: list[str]) -> None:
    language_model, recorder = recorded_model()
    model = traced("langchain", language_model, traces)
    for artifact in ([DOCUMENT], DOCUMENT, [SAVED, {"score": 1}]):
        await ask_in_every_way(model, tool_turn(artifact))
    model.ask(tool_turn([DOCUMENT]), references=[SECRET])
    model.model.bind(references=[SECRET]).batch([tool_turn([DOCUMENT])])
    assert [references for _, references in recorder.requests] == [(SECRET,)] * 14
    assert "propolis" not in str(traces)
    for other in (None, "a text of the tool's own", 3, {"score": 1}, ["a", "b"]):
        model.ask(tool_turn(other))
        assert recorder.requests[-1][1] == ()


class Answer(BaseModel):
    """An answer."""

    place: str


@pytest.mark.parametrize("takes_messages", [True, False])
async def test_references_of_llama_indexs_templates_reach_the_decoder_and_no_trace(
    takes_messages: bool, traces: list[str]
) -> None:
    language_model, recorder = recorded_model()
    if not takes_messages:
        plain = byte_tokenizer(chat=False)
        language_model = LanguageModel(tiny_model(max_position_embeddings=4096), plain, drafter=recorder.drafter)
    llm, template = AntiphonLLM(language_model=language_model, max_tokens=60), PromptTemplate("Where is {it}?")
    given: dict[str, Any] = {"it": "it", "references": [NODE]}
    llm.predict(template, **given)
    list(llm.stream(template, **given))
    await llm.apredict(template, **given)
    _ = [piece async for piece in await llm.astream(template, **given)]
    llm.structured_predict(Answer, template, **given)
    await llm.astructured_predict(Answer, template, **given)
    list(llm.stream_structured_predict(Answer, template, **given))
    _ = [piece async for piece in await llm.astream_structured_predict(Answer, template, **given)]
    assert [references for _, references in recorder.requests] == [(SECRET,)] * 8
    assert all("Where is it?" in prompt and "references" not in prompt for prompt, _ in recorder.requests)
    assert "propolis" not in str(traces)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("given", [SECRET, DOCUMENT, 3, [3]])
def test_references_that_are_neither_texts_nor_documents_raise(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=r"references.* is of type"):
        MODELS[name](recorded_model()[0]).ask("Where?", references=given)


@pytest.mark.parametrize("mode", [ResponseMode.COMPACT, ResponseMode.REFINE])
async def test_references_passed_to_a_synthesizer_reach_every_call(mode: ResponseMode, retriever: Retriever) -> None:
    language_model, recorder = recorded_model()
    llm, nodes = AntiphonLLM(language_model=language_model, max_tokens=2), [NODE, TextNode(text="Bees dance.")]
    Settings.tokenizer = language_model.tokenizer.encode
    scored = [NodeWithScore(node=node, score=1.0) for node in nodes]
    synthesizer = get_response_synthesizer(llm=llm, response_mode=mode)
    synthesizer.synthesize(QUESTION, scored, references=nodes)
    await synthesizer.asynthesize(QUESTION, scored, references=nodes)
    streaming = get_response_synthesizer(llm=llm, response_mode=mode, streaming=True)
    answer: Any = streaming.synthesize(QUESTION, scored, references=nodes)
    list(answer.response_gen)
    Settings.tokenizer = None  # type: ignore[assignment]
    assert len(recorder.requests) >= 3
    assert {references for _, references in recorder.requests} == {(SECRET, "Bees dance.")}


# Forty tenants with nearly equal contracts: each call may use its own tenant's references only.

TENANTS = range(40)


def contract(tenant: int) -> str:
    return f"The rent of the hall is paid on the first of the month to account {tenant:05d}, and no other day."


def asked(tenant: int) -> str:
    return f"When does account {tenant:05d} get the rent?"


def input_of(model: Model, tenant: int) -> tuple[Any, dict[str, Any]]:
    """Return a tenant's prompt: references are in the call, on the message, and for every third tenant nowhere."""
    given = None if tenant % 3 == 2 else [contract(tenant)]
    if tenant % 3 == 0:
        return asked(tenant), {"references": given}
    return model.turns(("user", asked(tenant)), references=given), {}


def threaded(model: Model) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda given: model.ask(given[0], **given[1]), [input_of(model, tenant) for tenant in TENANTS]))


@pytest.mark.parametrize("name", CHATS)
def test_no_tenants_references_reach_another_tenants_call(name: str) -> None:
    language_model, recorder = recorded_model()
    threaded(CHATS[name](language_model, max_tokens=2))
    assert len(recorder.requests) == len(TENANTS)
    for prompt, references in recorder.requests:
        tenant = next(tenant for tenant in TENANTS if asked(tenant) in prompt)
        assert references == (() if tenant % 3 == 2 else (contract(tenant),))


QUOTING = f"As is written: {TEXTS[1]} And {TEXTS[2]}"


@pytest.mark.parametrize("name", CHATS)
async def test_answers_cite_their_references_whole_and_streamed(name: str, passages: list[Passage]) -> None:
    chat = CHATS[name](ScriptedModel(answer=QUOTING))
    given = [FRAMEWORKS[name].result(passage) for passage in passages]
    expected = [(QUOTING.index(text), "bees.txt", text[:-1]) for text in TEXTS[1:]]
    assert chat.ask("What is written?", references=given).citations == expected
    assert chat.stream("What is written?", references=given).whole.citations == expected
    assert (await chat.astream("What is written?", references=given)).whole.citations == expected
    assert chat.ask("What is written?").citations == []


def test_citation_blocks_of_llama_index_name_their_node(passages: list[Passage]) -> None:
    blocks = citation_blocks(QUOTING, passages)
    assert [block.source for block in blocks] == [passages[1].id, passages[2].id]
    assert [getattr(block.cited_content, "text", None) for block in blocks] == [text.rstrip(".") for text in TEXTS[1:3]]


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


def test_hidden_references_keep_their_passages_and_print_as_a_digest() -> None:
    hidden = HiddenReferences([PASSAGE])
    copies = (copy.copy(hidden), copy.deepcopy(hidden), hidden.model_copy(deep=True))
    for copied in (*copies, pickle.loads(pickle.dumps(hidden))):
        assert (copied.passages, copied, hash(copied)) == ((PASSAGE,), hidden, hash(hidden))
    shown = str(hidden)
    assert shown.startswith("references ")
    assert repr(hidden) == f"{hidden}" == str(hidden.model_dump()) == json.loads(hidden.model_dump_json()) == shown
    assert json.loads(json.dumps([hidden], default=str)) == [shown]
    assert (dict(hidden), vars(hidden)) == ({}, {})
    for other in (HiddenReferences([]), HiddenReferences([Passage.at("hive.txt", 1, SECRET)])):
        assert other != hidden
        assert str(other) != shown, "caches distinguish calls by it"


def test_messages_show_no_text_of_hidden_references() -> None:
    hidden = HiddenReferences([PASSAGE])
    carrying: list[Any] = [
        HumanMessage("Where?", additional_kwargs={"references": hidden}),
        ToolMessage("found", tool_call_id="1", artifact=hidden),
        ChatMessage("Where?", additional_kwargs={"references": hidden}),
    ]
    for message in carrying:
        assert "propolis" not in str(message) + repr(message) + str(message.model_dump()) + message.model_dump_json()
    messages = carrying[:2]
    forms = [dumps(messages), dumpd(messages), dumps_json({"inputs": messages, "extra": hidden})]
    forms += [deepish_copy({"inputs": messages}), messages_to_dict(messages), get_buffer_string(messages)]
    assert "propolis" not in str(forms) + "".join(message.pretty_repr() for message in messages)


def test_the_documents_of_a_tool_message_are_hidden_and_stay_references() -> None:
    message = ToolMessage("found", tool_call_id="1", artifact=[DOCUMENT])
    hidden = hide_references(message)
    assert isinstance(hidden, ToolMessage)
    assert SECRET not in repr(hidden)
    assert SECRET in repr(message), "the message of the caller is not changed"
    assert [passage.text for passage in references_of([hidden])] == [SECRET]
