"""Antiphon's retriever over vector stores of the frameworks returns the passages of an index folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from llama_index.core.vector_stores.simple import SimpleVectorStore

from antiphon.integrations.langchain import AntiphonEmbeddings
from antiphon.integrations.langchain import AntiphonVectorStore as LangChainStore
from antiphon.integrations.langchain import VectorStorePassages as LangChainPassages
from antiphon.integrations.langchain.documents import document_of
from antiphon.integrations.llama_index import AntiphonVectorStore as LlamaStore
from antiphon.integrations.llama_index import VectorStorePassages as LlamaPassages
from antiphon.integrations.llama_index.nodes import node_of
from antiphon.retrieval import HashEmbedder, Passage, PassageIndex, Retriever, index_passages
from antiphon.retrieval.filters import matches, parse_filter

EMBEDDER = HashEmbedder()
WORDS = ("cats", "stars", "bread", "boats", "roads", "birds")
PASSAGES = [
    Passage.at(f"{word}.txt", 5, f"All about {word} and {other}.", {"lang": "de" if word > "c" else "en"})
    for word in WORDS
    for other in ("water", "iron", "sleep")
]


def langchain_index(store: LangChainStore | InMemoryVectorStore) -> PassageIndex:
    store.add_documents([document_of(passage) for passage in PASSAGES])
    return LangChainPassages(store)


def llama_index() -> PassageIndex:
    store = LlamaStore()
    nodes = [node_of(passage).node for passage in PASSAGES]
    for node, vector in zip(nodes, EMBEDDER.embed_documents([passage.text for passage in PASSAGES]), strict=True):
        node.embedding = vector.tolist()
    store.add(nodes)
    return LlamaPassages(store)


INDEXES = {
    "langchain": lambda: langchain_index(LangChainStore(AntiphonEmbeddings(EMBEDDER))),
    "langchain in memory": lambda: langchain_index(InMemoryVectorStore(AntiphonEmbeddings(EMBEDDER))),
    "llama-index": llama_index,
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_framework_store_returns_the_passages_of_an_index_folder(name: str, tmp_path: Path) -> None:
    index_passages(PASSAGES, tmp_path / "index", EMBEDDER)
    folder = Retriever.open(tmp_path / "index", reranker=None, fusion=None)
    retriever = Retriever(INDEXES[name](), EMBEDDER, fusion=None)
    for word in WORDS:
        found, expected = (
            retriever.search(f"tell me about {word} and iron", 4),
            folder.search(f"tell me about {word} and iron", 4),
        )
        assert [(p.id, p.text, p.source, p.start, p.end) for p in found[:2]] == [
            (p.id, p.text, p.source, p.start, p.end) for p in expected[:2]
        ]
        scores = [passage.score or 0.0 for passage in found]
        assert scores == sorted(scores, reverse=True)
    with pytest.raises(TypeError, match="The index is VectorStorePassages, which is read-only; change it where"):
        retriever.add(PASSAGES)


def test_a_store_without_search_by_vector_raises_at_construction() -> None:
    class ByText(InMemoryVectorStore):
        similarity_search_by_vector = VectorStore.similarity_search_by_vector

    with pytest.raises(TypeError, match=r"ByText cannot be searched by vector .* use another store"):
        LangChainPassages(ByText(AntiphonEmbeddings(EMBEDDER)))


@pytest.mark.parametrize("name", ["langchain", "llama-index"])
def test_a_filter_reaches_the_store(name: str) -> None:
    index = INDEXES[name]()
    found = index.vector_search(EMBEDDER.embed_queries(["all about cats"])[0], 18, {"lang": "de"})
    assert {passage.id for passage in found} == {p.id for p in PASSAGES if p.metadata["lang"] == "de"}
    assert index.keyword_search("cats", 3) == []
    assert np.all(np.diff([passage.score or 0.0 for passage in found]) <= 0)


def test_a_store_with_another_kind_of_filter_raises_and_rank_scores_are_positive() -> None:
    index = INDEXES["langchain in memory"]()
    vector = EMBEDDER.embed_queries(["all about cats"])[0]
    with pytest.raises(ValueError, match=r"InMemoryVectorStore does not accept the filter \{'lang': 'de'\}"):
        index.vector_search(vector, 4, {"lang": "de"})
    assert [passage.score for passage in index.vector_search(vector, 4)] == [1.0, 0.75, 0.5, 0.25]


def test_a_store_without_texts_raises() -> None:
    with pytest.raises(ValueError, match="SimpleVectorStore stores vectors only; use a store that stores text"):
        LlamaPassages(SimpleVectorStore())


FILTERS = (
    {"lang": {"$ne": "de"}},
    {"number": {"$gt": 3, "$lte": 9}},
    {"number": {"$in": [1, 5, 99]}},
    {"number": {"$nin": [1, 5, 99]}},
    {"$or": [{"number": {"$lt": 2}}, {"$not": {"lang": "de"}}]},
    {"extra": None},
    {"$and": [{"lang": "en"}, {"number": {"$gte": 1}}]},
)


@pytest.mark.parametrize("where", FILTERS)
def test_filters_with_operators_are_translated_for_llama_index(where: dict[str, Any]) -> None:
    numbered = [
        replace(each, metadata={**each.metadata, "number": n, **({"extra": "x"} if n % 3 else {})})
        for n, each in enumerate(PASSAGES)
    ]
    store = LlamaStore()
    nodes = [node_of(passage).node for passage in numbered]
    for node, vector in zip(nodes, EMBEDDER.embed_documents([each.text for each in numbered]), strict=True):
        node.embedding = vector.tolist()
    store.add(nodes)
    found = LlamaPassages(store).vector_search(EMBEDDER.embed_queries(["cats"])[0], 18, where)
    condition = parse_filter(where)
    expected = {each.id for each in numbered if matches(condition, each)}
    assert {each.id for each in found} == expected
    assert 0 < len(expected) < len(numbered)


@pytest.mark.parametrize("name", INDEXES)
def test_scores_over_a_framework_store_are_those_of_an_index_folder(name: str, tmp_path: Path) -> None:
    index_passages(PASSAGES, tmp_path / "index", EMBEDDER)
    question = "all about cats and sleep"
    [expected] = Retriever.open(tmp_path / "index", reranker=None).search(question, 1)
    [found] = Retriever(INDEXES[name](), EMBEDDER).search(question, 1)
    assert found.id == expected.id
    assert found.score == pytest.approx(expected.score, abs=0.05)
