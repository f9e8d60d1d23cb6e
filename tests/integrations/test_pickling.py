"""Objects of both frameworks that are pickled or copied: the same again, or refused, never emptied."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import TextNode

from antiphon.accel import LanguageModel
from antiphon.integrations import langchain, llama_index
from antiphon.retrieval import HashEmbedder, MaxSimReranker, Retriever

QUESTION = "What do bees do?"


@pytest.fixture
def folder(tmp_path: Path, tiny: LanguageModel) -> str:
    tiny.model.save_pretrained(tmp_path / "model")
    tiny.tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def said(model: Any) -> str:
    return str(model.complete(QUESTION) if hasattr(model, "complete") else model.invoke(QUESTION).text)


MODELS: dict[str, Any] = {
    "chat": langchain.ChatAntiphon,
    "llm": langchain.AntiphonLLM,
    "llama-index": llama_index.AntiphonLLM,
}


@pytest.mark.parametrize("kind", ["chat", "llama-index"])
def test_a_model_that_was_loaded_by_its_name_is_loaded_again_from_a_pickle(kind: str, folder: str) -> None:
    model: Any = MODELS[kind](model=folder, max_tokens=5)
    again = pickle.loads(pickle.dumps(model))
    assert again.language_model is not model.language_model
    assert (again.max_tokens, again.model, said(again)) == (5, folder, said(model))


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_was_handed_over_is_refused_by_pickle_and_says_what_to_do(kind: str, tiny: LanguageModel) -> None:
    model: Any = MODELS[kind](language_model=tiny)
    with pytest.raises(TypeError, match=r"was given a language_model, which no pickle holds; .* model="):
        pickle.dumps(model)


@pytest.mark.parametrize("kind", MODELS)
def test_a_copy_of_a_model_shares_what_was_loaded(kind: str, tiny: LanguageModel) -> None:
    model: Any = MODELS[kind](language_model=tiny, stop=["x"])
    for copied in (copy.copy(model), copy.deepcopy(model), model.model_copy(deep=True)):
        assert copied.language_model is tiny
        assert copied.stop == ["x"]
    deep = copy.deepcopy(model)
    deep.stop.append("y")
    assert model.stop == ["x"]


def stores() -> list[Any]:
    ours = langchain.AntiphonVectorStore.from_texts(["Bees dance."], langchain.AntiphonEmbeddings("hash"))
    theirs = llama_index.AntiphonVectorStore()
    theirs.add([TextNode(text="Bees dance.", embedding=[1.0, 0.0])])
    return [ours, theirs]


def test_a_vector_store_is_the_same_from_a_pickle_and_a_copy_is_its_own() -> None:
    counts: list[Any] = [len, lambda store: len(store.client)]
    for store, count in zip(stores(), counts, strict=True):
        again, deep = pickle.loads(pickle.dumps(store)), copy.deepcopy(store)
        assert count(again) == count(deep) == 1
        (again.delete if count is len else again.clear)()
        assert (count(again), count(store), count(deep)) == (0, 1, 1)
    found = pickle.loads(pickle.dumps(stores()[0])).similarity_search("Bees dance.", 1)
    assert [document.page_content for document in found] == ["Bees dance."]


def holders(retriever: Retriever) -> list[Any]:
    """Everything that holds an index or a reranker, which have locks."""
    reranker = MaxSimReranker(HashEmbedder())
    return [
        langchain.AntiphonRetriever(retriever=retriever),
        langchain.AntiphonReranker(reranker=reranker),
        llama_index.AntiphonRetriever(retriever),
        llama_index.AntiphonRerank(reranker=reranker),
    ]


def test_what_cannot_be_pickled_is_refused_by_its_name_with_what_to_do(
    retriever: Retriever, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for holder in holders(retriever):
            with pytest.raises(TypeError, match=rf"^{type(holder).__name__} .* no pickle can hold .*; make it anew"):
                pickle.dumps(holder)
    assert caplog.messages == [], "nothing is left out of a pickle"


def test_a_deep_copy_of_what_cannot_be_pickled_shares_it(retriever: Retriever) -> None:
    for holder in holders(retriever):
        deep = copy.deepcopy(holder)
        assert type(deep) is type(holder)
        shared = (
            "reranker" if hasattr(holder, "reranker") else "retriever" if hasattr(holder, "retriever") else "_searcher"
        )
        assert getattr(deep, shared) is getattr(holder, shared)


def test_embeddings_are_the_same_from_a_pickle() -> None:
    for made, ask in (
        (langchain.AntiphonEmbeddings("hash"), "embed_query"),
        (llama_index.AntiphonEmbedding("hash"), "get_query_embedding"),
    ):
        assert getattr(pickle.loads(pickle.dumps(made)), ask)("bees") == getattr(made, ask)("bees")
