"""Antiphon's retriever over vector stores of the frameworks, Qdrant too, returns the passages of an index folder."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import numpy as np
import pytest
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores import FilterCondition, MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.utils import build_metadata_filter_fn
from pydantic import PrivateAttr

from antiphon.integrations.langchain import AntiphonEmbeddings
from antiphon.integrations.langchain import VectorStorePassages as LangChainPassages
from antiphon.integrations.langchain.documents import document_of, passage_of
from antiphon.integrations.llama_index import VectorStorePassages as LlamaPassages
from antiphon.integrations.llama_index.nodes import node_of
from antiphon.retrieval import HashEmbedder, Passage, PassageIndex, Retriever, index_passages
from antiphon.retrieval.filters import parse_filter
from tests.filter_reference import matches

EMBEDDER = HashEmbedder()
WORDS = ("cats", "stars", "bread", "boats", "roads", "birds")
PASSAGES = [
    replace(
        Passage.at(
            f"{word}.txt",
            5,
            f"All about {word} and {other}.",
            {"lang": "de" if word > "c" else "en", "number": number, **({"extra": "x"} if number % 3 else {})},
        ),
        id=str(uuid5(NAMESPACE_OID, f"{word} {other}")),  # Qdrant's ids are UUIDs
    )
    for number, (word, other) in enumerate((word, other) for word in WORDS for other in ("water", "iron", "sleep"))
]


class FilteredStore(InMemoryVectorStore):
    """A LangChain store that, like Chroma, takes filters as dictionaries."""

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Any = None, **kwargs: Any
    ) -> list[Any]:
        condition = parse_filter(filter)
        return super().similarity_search_by_vector(
            embedding, k, filter=lambda found: condition is None or matches(condition, passage_of(found) or PASSAGES[0])
        )


class TextStore(SimpleVectorStore):
    """A LlamaIndex store that keeps the texts of its nodes and, like Qdrant, takes nested filters."""

    stores_text: bool = True
    _nodes: dict[str, BaseNode] = PrivateAttr(default_factory=dict)

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        self._nodes.update((node.node_id, node) for node in nodes)
        return super().add(nodes, **kwargs)

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        kept = None if query.filters is None else [node.node_id for node in self._nodes.values() if passes(node, query)]
        result = super().query(
            VectorStoreQuery(query.query_embedding, similarity_top_k=query.similarity_top_k, node_ids=kept)
        )
        return VectorStoreQueryResult(
            nodes=[self._nodes[each] for each in result.ids or ()], similarities=result.similarities, ids=result.ids
        )


def passes(node: BaseNode, query: VectorStoreQuery) -> bool:
    """Return whether a node passes the filter of a query; LlamaIndex evaluates the innermost ones."""

    def holds(part: Any) -> bool:
        if not isinstance(part, MetadataFilters):
            alone = MetadataFilters(filters=[part])
            return build_metadata_filter_fn(lambda _: node.metadata, alone)(node.node_id)
        results = [holds(each) for each in part.filters]
        if part.condition == FilterCondition.NOT:
            return not any(results)
        return any(results) if part.condition == FilterCondition.OR else all(results)

    return holds(query.filters)


def langchain_index(kind: type[InMemoryVectorStore]) -> PassageIndex:
    store = kind(AntiphonEmbeddings(EMBEDDER))
    store.add_documents([document_of(passage) for passage in PASSAGES])
    return LangChainPassages(store)


def llama_index(store: Any) -> PassageIndex:
    nodes = [node_of(passage).node for passage in PASSAGES]
    for node, vector in zip(nodes, EMBEDDER.embed_documents([passage.text for passage in PASSAGES]), strict=True):
        node.embedding = vector.tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Qdrant's local mode has no payload indexes
        store.add(nodes)
    return LlamaPassages(store)


def qdrant() -> PassageIndex:
    from llama_index.vector_stores.qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient

    return llama_index(QdrantVectorStore("passages", client=QdrantClient(":memory:")))


INDEXES: dict[str, Callable[[], PassageIndex]] = {
    "langchain": lambda: langchain_index(FilteredStore),
    "langchain in memory": lambda: langchain_index(InMemoryVectorStore),
    "llama-index": lambda: llama_index(TextStore()),
    "qdrant": qdrant,
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_framework_store_returns_the_passages_of_an_index_folder(name: str, tmp_path: Path) -> None:
    index_passages(PASSAGES, tmp_path / "index", EMBEDDER)
    folder = Retriever.open(tmp_path / "index", reranker=None, fusion=None)
    retriever = Retriever(INDEXES[name](), EMBEDDER, fusion=None)
    for word in WORDS:
        found, expected = (each.search(f"tell me about {word} and iron", 4) for each in (retriever, folder))
        assert [(p.id, p.text, p.source, p.start, p.end) for p in found[:2]] == [
            (p.id, p.text, p.source, p.start, p.end) for p in expected[:2]
        ]
        scores = [passage.score or 0.0 for passage in found]
        assert scores == sorted(scores, reverse=True)
    [best] = Retriever(INDEXES[name](), EMBEDDER).search("all about cats and sleep", 1)
    [expected_best] = Retriever.open(tmp_path / "index", reranker=None).search("all about cats and sleep", 1)
    assert best.id == expected_best.id
    assert best.score == pytest.approx(expected_best.score, abs=0.05)
    with pytest.raises(TypeError, match="The index is VectorStorePassages, which is read-only; change it where"):
        retriever.add(PASSAGES)


def test_stores_that_cannot_be_searched_by_vector_or_have_no_texts_raise_at_construction() -> None:
    class ByText(InMemoryVectorStore):
        similarity_search_by_vector = VectorStore.similarity_search_by_vector

    with pytest.raises(TypeError, match=r"ByText cannot be searched by vector .* use another store"):
        LangChainPassages(ByText(AntiphonEmbeddings(EMBEDDER)))
    with pytest.raises(ValueError, match="SimpleVectorStore stores vectors only; use a store that stores text"):
        LlamaPassages(SimpleVectorStore())


FILTERS = (
    {"lang": "de"},
    {"source": "cats.txt"},
    {"lang": {"$ne": "de"}},
    {"number": {"$gt": 3, "$lte": 9}},
    {"number": {"$in": [1, 5, 99]}},
    {"number": {"$nin": [1, 5, 99]}},
    {"$or": [{"number": {"$lt": 2}}, {"$not": {"lang": "de"}}]},
    {"extra": None},
    {"$and": [{"lang": "en"}, {"number": {"$gte": 1}}]},
)


@pytest.mark.parametrize("name", ["langchain", "llama-index", "qdrant"])
@pytest.mark.parametrize("where", FILTERS)
def test_a_filter_reaches_the_store(name: str, where: dict[str, Any]) -> None:
    index, condition = INDEXES[name](), parse_filter(where)
    assert condition is not None
    found = index.vector_search(EMBEDDER.embed_queries(["all about cats"])[0], 18, where)
    expected = {passage.id for passage in PASSAGES if matches(condition, passage)}
    assert {passage.id for passage in found} == expected
    assert 0 < len(expected) < len(PASSAGES)
    assert index.keyword_search("cats", 3) == []
    assert np.all(np.diff([passage.score or 0.0 for passage in found]) <= 0)


def test_a_store_with_another_kind_of_filter_raises_and_rank_scores_are_positive() -> None:
    index = INDEXES["langchain in memory"]()
    vector = EMBEDDER.embed_queries(["all about cats"])[0]
    with pytest.raises(ValueError, match=r"InMemoryVectorStore does not accept the filter \{'lang': 'de'\}"):
        index.vector_search(vector, 4, {"lang": "de"})
    assert [passage.score for passage in index.vector_search(vector, 4)] == [1.0, 0.75, 0.5, 0.25]


def test_a_store_without_similarities_gives_scores_by_rank() -> None:
    class Unscored(TextStore):
        def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
            return VectorStoreQueryResult(nodes=list(super().query(query, **kwargs).nodes or ()))

    found = llama_index(Unscored()).vector_search(EMBEDDER.embed_queries(["all about cats"])[0], 4)
    assert [passage.score for passage in found] == [1.0, 0.75, 0.5, 0.25]
