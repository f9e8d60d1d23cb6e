"""LangChain caches shared by several tenants never return another call's citations or statistics."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.caches import RETURN_VAL_TYPE, BaseCache, InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from antiphon.integrations.langchain import AntiphonLLM, ChatAntiphon
from tests.integrations.request_recorder import recorded_model
from tests.integrations.scripted_model import ScriptedModel

pytestmark = pytest.mark.filterwarnings("ignore:The function `loads` is in beta")  # raised by LangChain itself

ANSWER = "The rent of the hall is paid on the first of the month."
TENANTS = range(40)


class SerializingCache(BaseCache):
    """A cache that stores serialized results, as a database would."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        found = self.kept.get((prompt, llm_string))
        return None if found is None else loads(found, allowed_objects="core")

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        self.kept[prompt, llm_string] = dumps(return_val)

    def clear(self, **kwargs: Any) -> None:
        self.kept.clear()


CACHES = {"in memory": InMemoryCache, "bounded": lambda: InMemoryCache(maxsize=64), "serialized": SerializingCache}


@pytest.fixture(params=[*CACHES, "global"])
def cache(request: pytest.FixtureRequest) -> Iterator[BaseCache | None]:
    """Each cache of langchain-core, passed to a model or set globally (None)."""
    if request.param == "global":
        set_llm_cache(InMemoryCache())
        yield None
        set_llm_cache(None)
    else:
        yield CACHES[request.param]()


def source(tenant: int) -> str:
    return f"/tenants/{tenant:02d}/plan.md"


def document(tenant: int) -> Document:
    return Document(ANSWER, metadata={"source": source(tenant)})


def input_of(tenant: int) -> tuple[Any, dict[str, Any]]:
    """A third of the tenants pass references in the call, a third on a message, and a third have none."""
    if tenant % 3 == 0:
        return [HumanMessage("When?")], {"references": [document(tenant)]}
    if tenant % 3 == 1:
        return [HumanMessage("When?", additional_kwargs={"references": [document(tenant)]})], {}
    return [HumanMessage("When?")], {}


def has_own_citations(tenant: int, citations: list[Any]) -> bool:
    return [note["title"] for note in citations] == ([] if tenant % 3 == 2 else [source(tenant)])


def citations_of(answer: AIMessage) -> list[Any]:
    found: list[Any] = answer.additional_kwargs.get("citations", [])
    return found


def test_forty_tenants_with_one_cache_get_their_own_citations_in_threads(cache: BaseCache | None) -> None:
    model = ScriptedModel(answer=ANSWER)
    chat = ChatAntiphon(language_model=model, cache=cache)

    def ask(tenant: int) -> AIMessage:
        prompt, given = input_of(tenant)
        return chat.invoke(prompt, **given)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):  # the second time from the cache
            for tenant, answer in enumerate(pool.map(ask, TENANTS)):
                assert answer.content == ANSWER
                assert has_own_citations(tenant, citations_of(answer))
    spent = len(model.asked)
    assert has_own_citations(3, citations_of(ask(3)))
    assert len(model.asked) == spent, "the same question with the same documents is cached"


async def test_tool_results_and_their_positions_are_part_of_the_cache_key(cache: BaseCache | None) -> None:
    chat = ChatAntiphon(language_model=ScriptedModel(answer=ANSWER), cache=cache)
    call = {"name": "search", "args": {}, "id": "1"}

    def turns(tenant: int) -> list[Any]:
        found = ToolMessage("found", tool_call_id="1", artifact=[document(tenant)])
        return [HumanMessage("When?"), AIMessage("", tool_calls=[call]), found]

    for tenant in (1, 2, 1):
        assert [note["title"] for note in citations_of(chat.invoke(turns(tenant)))] == [source(tenant)]
        assert [note["title"] for note in citations_of(await chat.ainvoke(turns(tenant)))] == [source(tenant)]
    answer: Any = chat.generate([turns(3)]).generations[0][0]
    assert [note["title"] for note in citations_of(answer.message)] == [source(3)], "generate() hides nothing"
    for start in (0, 100):
        placed = Document(ANSWER, metadata={"source": "a", "start_index": start})
        note = citations_of(chat.invoke("When?", references=[placed]))[0]
        assert note["extras"]["source_start"] == start


def test_a_streamed_cached_call_leaves_no_references_for_the_next_call(cache: BaseCache | None) -> None:
    chat = ChatAntiphon(language_model=ScriptedModel(answer=ANSWER), cache=cache, streaming=True)
    assert has_own_citations(0, citations_of(chat.invoke("When?", references=[document(0)])))
    assert citations_of(chat.invoke("When?")) == []


def test_parameters_of_a_chat_call_are_part_of_the_cache_key(cache: BaseCache | None) -> None:
    model, recorder = recorded_model()
    chat = ChatAntiphon(language_model=model, max_tokens=2, cache=cache)
    answers = {chat.invoke("Where?").text, chat.invoke("Where?").text}
    assert len(answers) == len(recorder.requests) == 1
    chat.invoke("Where?", max_tokens=3)
    assert len(recorder.requests) == 2


def test_cache_keys_contain_no_text_of_references() -> None:
    cache = SerializingCache()
    chat = ChatAntiphon(language_model=ScriptedModel(answer=ANSWER), cache=cache)
    chat.invoke("When?", references=["The password of the hive is propolis"])
    AntiphonLLM(language_model=ScriptedModel(answer=ANSWER), cache=cache).invoke(
        "When?", references=["The password of the hive is propolis"]
    )
    assert len(cache.kept) == 2
    assert "propolis" not in str(cache.kept)
