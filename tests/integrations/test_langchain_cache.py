"""LangChain's caches, shared by everybody: whoever hits one never gets another's citations or figures."""

from __future__ import annotations

import asyncio
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
from tests.integrations.scripted import Scripted
from tests.integrations.watching import watched

pytestmark = pytest.mark.filterwarnings("ignore:The function `loads` is in beta")  # LangChain's own

ANSWER = "The rent of the hall is paid on the first of the month."
TENANTS = range(40)


class SavingCache(BaseCache):
    """A cache that keeps texts alone, as one in a database does."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        found = self.kept.get((prompt, llm_string))
        return None if found is None else loads(found, allowed_objects="core")

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        self.kept[prompt, llm_string] = dumps(return_val)

    def clear(self, **kwargs: Any) -> None:
        self.kept.clear()


CACHES = {"in memory": InMemoryCache, "bounded": lambda: InMemoryCache(maxsize=64), "saving": SavingCache}


@pytest.fixture(params=[*CACHES, "global"])
def cache(request: pytest.FixtureRequest) -> Iterator[BaseCache | None]:
    """Every cache of langchain-core, given to a model or to all; None is the global one."""
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
    """Every third tenant hands over its document, or has it on a message; every third has none."""
    if tenant % 3 == 0:
        return [HumanMessage("When?")], {"references": [document(tenant)]}
    if tenant % 3 == 1:
        return [HumanMessage("When?", additional_kwargs={"references": [document(tenant)]})], {}
    return [HumanMessage("When?")], {}


def is_own(tenant: int, citations: list[Any]) -> bool:
    return [note["title"] for note in citations] == ([] if tenant % 3 == 2 else [source(tenant)])


def of_chat(answer: AIMessage) -> list[Any]:
    found: list[Any] = answer.additional_kwargs.get("citations", [])
    return found


def test_forty_tenants_of_one_cache_get_their_own_citations_in_threads(cache: BaseCache | None) -> None:
    chat = ChatAntiphon(language_model=Scripted(answer=ANSWER), cache=cache)

    def ask(tenant: int) -> AIMessage:
        prompt, given = input_of(tenant)
        return chat.invoke(prompt, **given)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):  # the second time from the cache
            for tenant, answer in enumerate(pool.map(ask, TENANTS)):
                assert answer.content == ANSWER
                assert is_own(tenant, of_chat(answer))


async def test_forty_tenants_of_one_cache_get_their_own_citations_in_a_loop(cache: BaseCache | None) -> None:
    model = Scripted(answer=ANSWER)
    chat = ChatAntiphon(language_model=model, cache=cache)

    async def ask(tenant: int) -> AIMessage:
        prompt, given = input_of(tenant)
        return await chat.ainvoke(prompt, **given)

    for _ in range(2):
        for tenant, answer in enumerate(await asyncio.gather(*map(ask, TENANTS))):
            assert is_own(tenant, of_chat(answer))
    spent = len(model.asked)
    assert is_own(3, of_chat(await ask(3)))
    assert len(model.asked) == spent, "the same question with the same documents is in the cache"


def test_forty_tenants_of_one_cache_get_their_own_citations_from_an_llm(cache: BaseCache | None) -> None:
    llm = AntiphonLLM(language_model=Scripted(answer=ANSWER), cache=cache)

    def ask(tenant: int) -> list[Any]:
        given: dict[str, Any] = {} if tenant % 3 == 2 else {"references": [document(tenant)]}
        info = llm.generate(["When?"], **given).generations[0][0].generation_info or {}
        return list(info.get("citations", []))

    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            assert [is_own(tenant, found) for tenant, found in enumerate(pool.map(ask, TENANTS))] == [True] * 40


async def test_what_a_tool_found_is_part_of_the_key_and_so_is_where_it_stands(cache: BaseCache | None) -> None:
    chat = ChatAntiphon(language_model=Scripted(answer=ANSWER), cache=cache)
    call = {"name": "search", "args": {}, "id": "1"}

    def turns(tenant: int) -> list[Any]:
        found = ToolMessage("found", tool_call_id="1", artifact=[document(tenant)])
        return [HumanMessage("When?"), AIMessage("", tool_calls=[call]), found]

    for tenant in (1, 2, 1):
        assert [note["title"] for note in of_chat(chat.invoke(turns(tenant)))] == [source(tenant)]
        assert [note["title"] for note in of_chat(await chat.ainvoke(turns(tenant)))] == [source(tenant)]
    answer: Any = chat.generate([turns(3)]).generations[0][0]
    assert [note["title"] for note in of_chat(answer.message)] == [source(3)], "messages that were not hidden before"
    for start in (0, 100):
        placed = Document(ANSWER, metadata={"source": "a", "start_index": start})
        note = of_chat(chat.invoke("When?", references=[placed]))[0]
        assert note["extras"]["source_start"] == start


def test_who_watches_the_tokens_of_a_cached_call_leaves_nothing_to_the_next(cache: BaseCache | None) -> None:
    chat = ChatAntiphon(language_model=Scripted(answer=ANSWER), cache=cache, streaming=True)
    assert is_own(0, of_chat(chat.invoke("When?", references=[document(0)])))
    assert of_chat(chat.invoke("When?")) == []


def test_the_parameters_of_a_call_are_part_of_the_key(cache: BaseCache | None) -> None:
    model, watch = watched()
    chat = ChatAntiphon(language_model=model, max_tokens=2, cache=cache)
    answers = {chat.invoke("Where?").text, chat.invoke("Where?").text}
    assert len(answers) == len(watch.texts) == 1
    chat.invoke("Where?", max_tokens=3)
    assert len(watch.texts) == 2


def test_the_parameters_of_an_llms_call_are_part_of_the_key(cache: BaseCache | None) -> None:
    model, watch = watched()
    llm = AntiphonLLM(language_model=model, max_tokens=8, cache=cache)
    whole = llm.invoke("Where?")
    assert llm.invoke("Where?", max_tokens=2) != whole
    assert llm.invoke("Where?") == whole
    assert llm.invoke("Where?", max_tokens=2) == llm.invoke("Where?", max_tokens=2)
    assert len(watch.texts) == 2


def test_no_text_of_a_reference_is_in_the_key_of_a_cache() -> None:
    saving = SavingCache()
    chat = ChatAntiphon(language_model=Scripted(answer=ANSWER), cache=saving)
    chat.invoke("When?", references=["The password of the hive is propolis"])
    AntiphonLLM(language_model=Scripted(answer=ANSWER), cache=saving).invoke(
        "When?", references=["The password of the hive is propolis"]
    )
    assert len(saving.kept) == 2
    assert "propolis" not in str(saving.kept)
