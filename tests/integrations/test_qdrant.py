"""Antiphon's retriever over a real Qdrant, through LlamaIndex's vector store for it."""

import warnings
from collections.abc import Iterator
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest
from llama_index.core.schema import BaseNode, TextNode

from antiphon.integrations.llama_index import VectorStorePassages
from antiphon.retrieval import HashEmbedder, Passage, Retriever
from antiphon.retrieval.filters import parse_filter
from tests.filter_reference import matches

EMBEDDER = HashEmbedder()
PASSAGES = [
    Passage.at(
        f"{word}.txt",
        0,
        f"All about {word} and {other}.",
        {"lang": "de" if word > "c" else "en", "number": number, **({"extra": "x"} if number % 3 else {})},
    )
    for number, (word, other) in enumerate(
        (word, other) for word in ("bees", "cats", "birds", "stars") for other in ("water", "iron", "sleep")
    )
]
FILTERS: list[dict[str, Any]] = [
    {"lang": "de"},
    {"source": "cats.txt"},
    {"lang": {"$ne": "de"}},
    {"number": {"$gt": 3, "$lte": 9}},
    {"number": {"$in": [1, 5, 99]}},
    {"number": {"$nin": [1, 5, 99]}},
    {"$or": [{"number": {"$lt": 2}}, {"$not": {"lang": "de"}}]},
    {"extra": None},
]


@pytest.fixture(scope="module")
def retriever() -> Iterator[Retriever]:
    from llama_index.vector_stores.qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient

    client = QdrantClient(":memory:")
    store = QdrantVectorStore("passages", client=client)
    vectors = EMBEDDER.embed_documents([passage.text for passage in PASSAGES])
    nodes: list[BaseNode] = [
        TextNode(
            id_=str(uuid5(NAMESPACE_OID, passage.id)),  # Qdrant's ids are UUIDs
            text=passage.text,
            metadata={**passage.metadata, "source": passage.source},
            embedding=vector.tolist(),
        )
        for passage, vector in zip(PASSAGES, vectors, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the local mode has no payload indexes
        store.add(nodes)
    yield Retriever(VectorStorePassages(store), EMBEDDER, fusion=None)
    client.close()


def test_the_best_passages_are_found_with_their_sources_and_cosines(retriever: Retriever) -> None:
    for word in ("cats", "stars"):
        found = retriever.search(f"tell me all about {word} and iron", 3)
        assert (found[0].text, found[0].source) == (f"All about {word} and iron.", f"{word}.txt")
        expected = (
            EMBEDDER.embed_queries([f"tell me all about {word} and iron"]) @ EMBEDDER.embed_documents([found[0].text]).T
        )
        assert found[0].score == pytest.approx(float(expected[0, 0]), abs=1e-3)


@pytest.mark.parametrize("where", FILTERS)
def test_a_filter_finds_exactly_the_passages_that_match(retriever: Retriever, where: dict[str, Any]) -> None:
    condition = parse_filter(where)
    expected = {passage.text for passage in PASSAGES if matches(condition, passage)}
    found = retriever.search("water", len(PASSAGES), where=where)
    assert {passage.text for passage in found} == expected
    assert 0 < len(expected) < len(PASSAGES)
