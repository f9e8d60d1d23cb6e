"""The LlamaIndex vector store (compared with LlamaIndex's own), retriever, reranker and embedding."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from antiphon.integrations.llama_index import (
    AntiphonEmbedding,
    AntiphonRerank,
    AntiphonRetriever,
    AntiphonVectorStore,
)
from antiphon.integrations.llama_index.nodes import node_of, passage_of
from antiphon.integrations.llama_index.persistence import HEADER
from antiphon.retrieval import HashEmbedder, MaxSimReranker, Passage, Retriever
from tests.conftest import TEXTS

QUESTION = "How many eggs does a queen lay?"
DIM = 6


def nodes() -> list[TextNode]:
    """Return forty nodes with random vectors and metadata of several types, some of it missing."""
    chance = random.Random(0)
    made = []
    for number in range(40):
        metadata: dict[str, Any] = {"number": number % 7, "color": chance.choice(["red", "green", "dark green"])}
        if number % 3:
            metadata["tags"] = chance.sample(["a", "b", "c", "d"], chance.randint(0, 3))
        node = TextNode(
            id_=f"n{number}",
            text=f"node {number}",
            metadata=metadata,
            embedding=[chance.gauss(0, 1) for _ in range(DIM)],
        )
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"d{number % 5}")
        made.append(node)
    return made


def each_filter() -> Iterator[MetadataFilter]:
    """Yield every operator with suitable values, and keys that few or no nodes have."""
    operator = FilterOperator
    for compared in (operator.EQ, operator.NE, operator.GT, operator.LT, operator.GTE, operator.LTE):
        yield MetadataFilter(key="number", value=3, operator=compared)
    for compared in (operator.EQ, operator.NE, operator.TEXT_MATCH, operator.TEXT_MATCH_INSENSITIVE):
        yield MetadataFilter(key="color", value="green", operator=compared)
    yield MetadataFilter(key="color", value="GREEN", operator=operator.TEXT_MATCH_INSENSITIVE)
    for compared in (operator.IN, operator.NIN):
        yield MetadataFilter(key="color", value=["red", "green"], operator=compared)
    for compared in (operator.ANY, operator.ALL):
        yield MetadataFilter(key="tags", value=["a", "b"], operator=compared)
    yield MetadataFilter(key="tags", value="a", operator=operator.CONTAINS)
    yield MetadataFilter(key="tags", value=None, operator=operator.IS_EMPTY)
    yield MetadataFilter(key="missing", value=None, operator=operator.IS_EMPTY)


def test_every_filter_operator_is_covered() -> None:
    assert {each.operator for each in each_filter()} == set(FilterOperator)


def test_the_store_returns_the_results_of_llama_indexs_own_with_every_filter_and_condition() -> None:
    ours, theirs = AntiphonVectorStore(), SimpleVectorStore()
    ours.add(nodes())
    theirs.add(nodes())
    chance = random.Random(1)
    singles = list(each_filter())
    cases = 0
    for first in [None, *singles]:
        for second in [None, *chance.sample(singles, 4)]:
            for condition in FilterCondition:
                chosen = [each for each in (first, second) if each is not None]
                filters = MetadataFilters(filters=[*chosen], condition=condition) if chosen else None
                query = VectorStoreQuery(
                    query_embedding=[chance.gauss(0, 1) for _ in range(DIM)],
                    similarity_top_k=chance.choice([1, 5, 100]),
                    node_ids=chance.choice([None, None, [f"n{number}" for number in range(0, 40, 3)]]),
                    filters=filters,
                )
                found, expected = ours.query(query), theirs.query(query)
                assert found.ids == expected.ids, f"{filters} of {query.similarity_top_k}"
                assert found.similarities == pytest.approx(expected.similarities, abs=1e-5)
                cases += 1
    assert cases == 3 * 5 * (len(singles) + 1)


def test_a_query_filters_by_document_and_refuses_other_modes() -> None:
    store = AntiphonVectorStore()
    store.add(nodes())
    vector = [1.0] * DIM
    found = store.query(VectorStoreQuery(query_embedding=vector, similarity_top_k=40, doc_ids=["d1"]))
    assert sorted(found.ids or []) == sorted(f"n{number}" for number in range(1, 40, 5))
    with pytest.raises(ValueError, match="'hybrid'"):
        store.query(VectorStoreQuery(query_embedding=vector, mode=VectorStoreQueryMode.HYBRID))
    with pytest.raises(ValueError, match="no vector"):
        store.query(VectorStoreQuery())
    everything = store.query(VectorStoreQuery(query_embedding=vector, similarity_top_k=50, node_ids=[]))
    assert len(everything.ids or []) == 40, "an index over the store passes an empty list for any node"


def test_nodes_can_be_added_replaced_and_removed() -> None:
    store = AntiphonVectorStore()
    assert store.query(VectorStoreQuery(query_embedding=[1.0] * DIM)).ids == []
    store.add(nodes())
    store.delete("d0")
    assert len(store.get_nodes()) == 32
    store.delete_nodes(["n1", "n0", "unknown"])
    assert store.get_nodes(["n1"]) == []
    store.delete_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="color", value="red")]))
    assert {node.metadata["color"] for node in store.get_nodes()} == {"green", "dark green"}
    kept = store.get_nodes()[0]
    store.add([TextNode(id_=kept.node_id, text="new", embedding=[1.0] * DIM)])
    assert store.get_nodes([kept.node_id])[0].get_content() == "new"
    with pytest.raises(ValueError, match="clear"):
        store.delete_nodes()
    store.clear()
    assert store.get_nodes() == []


async def test_an_index_over_the_store_searches_and_deletes_documents() -> None:
    embedding = AntiphonEmbedding("hash")
    context = StorageContext.from_defaults(vector_store=AntiphonVectorStore())
    made = [TextNode(id_=f"n{number}", text=text) for number, text in enumerate(TEXTS)]
    for node in made:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"d{node.node_id}")
    index = VectorStoreIndex(made, storage_context=context, embed_model=embedding)
    found = index.as_retriever(similarity_top_k=1).retrieve(QUESTION)
    assert found[0].node.get_content() == TEXTS[2]
    assert (await index.as_retriever(similarity_top_k=1).aretrieve(QUESTION))[0].score == found[0].score
    index.delete_ref_doc("dn2")
    assert index.as_retriever(similarity_top_k=3).retrieve(QUESTION)[0].node.get_content() != TEXTS[2]


async def test_the_embedding_returns_the_embedders_vectors() -> None:
    embedding, embedder = AntiphonEmbedding("hash"), HashEmbedder()
    assert embedding.model_name == "hash"
    assert embedding.get_query_embedding(QUESTION) == embedder.embed_queries([QUESTION])[0].tolist()
    expected = embedder.embed_documents(TEXTS).tolist()
    assert embedding.get_text_embedding_batch(list(TEXTS)) == expected
    assert await embedding.aget_text_embedding_batch(list(TEXTS)) == expected
    assert await embedding.aget_query_embedding(QUESTION) == embedding.get_query_embedding(QUESTION)
    assert embedding.get_text_embedding(TEXTS[0]) == await embedding.aget_text_embedding(TEXTS[0]) == expected[0]


async def test_the_retriever_returns_the_passages_of_antiphons_retriever(retriever: Retriever) -> None:
    expected = retriever.search(QUESTION, 2)
    found = AntiphonRetriever(retriever, k=2).retrieve(QUESTION)
    assert [passage_of(node) for node in found] == expected
    assert [passage_of(node) for node in await AntiphonRetriever(retriever, k=2).aretrieve(QUESTION)] == expected


def test_the_reranker_returns_the_order_of_antiphons_and_keeps_the_given_scores(
    retriever: Retriever, passages: list[Passage]
) -> None:
    assert isinstance(retriever.reranker, MaxSimReranker)
    given = [NodeWithScore(node=node_of(passage).node, score=0.25) for passage in passages]
    rerank = AntiphonRerank(reranker=retriever.reranker, top_n=2)
    found = rerank.postprocess_nodes(given, query_str=QUESTION)
    expected = retriever.reranker.rerank(QUESTION, [passage_of(node) or passages[0] for node in given])
    assert [(node.node.node_id, node.score) for node in found] == [(each.id, each.score) for each in expected[:2]]
    assert [node.score for node in given] == [0.25] * 3
    assert len(AntiphonRerank(reranker=retriever.reranker).postprocess_nodes(given, query_str=QUESTION)) == 3
    with pytest.raises(ValueError, match="needs a query"):
        rerank.postprocess_nodes(given)


def test_a_store_works_with_any_embedding() -> None:
    context = StorageContext.from_defaults(vector_store=AntiphonVectorStore())
    index = VectorStoreIndex([TextNode(text="a")], storage_context=context, embed_model=MockEmbedding(embed_dim=3))
    assert index.as_retriever().retrieve("b")[0].node.get_content() == "a"


def indexed(folder: str | None = None) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=AntiphonVectorStore())
    nodes = [TextNode(id_=f"bee{place}", text=text) for place, text in enumerate(TEXTS)]
    embedding = AntiphonEmbedding("hash")
    made = VectorStoreIndex(nodes, storage_context=context, embed_model=embedding)
    if folder is not None:
        context.persist(folder)
    return made


def answers_of(index: Any) -> list[tuple[str, float]]:
    return [(found.node.get_content(), round(found.score, 5)) for found in index.as_retriever().retrieve(QUESTION)]


def test_a_persisted_storage_context_is_loaded_completely(tmp_path: Path) -> None:
    expected = answers_of(indexed(str(tmp_path)))
    store = AntiphonVectorStore.from_persist_dir(str(tmp_path))
    context = StorageContext.from_defaults(persist_dir=str(tmp_path), vector_store=store)
    assert answers_of(load_index_from_storage(context, embed_model=AntiphonEmbedding("hash"))) == expected
    alone = VectorStoreIndex.from_vector_store(store, embed_model=AntiphonEmbedding("hash"))
    assert answers_of(alone) == expected


def test_persisting_a_store_again_replaces_its_file_atomically(tmp_path: Path) -> None:
    path = str(tmp_path / "folder" / "store.json")
    store = AntiphonVectorStore()
    store.persist(path)
    assert AntiphonVectorStore.from_persist_path(path).get_nodes() == []
    store.add(nodes())
    store.persist(path)
    assert sorted(node.node_id for node in AntiphonVectorStore.from_persist_path(path).get_nodes()) == sorted(
        node.node_id for node in nodes()
    )
    assert [each.name for each in (tmp_path / "folder").iterdir()] == ["store.json"], "no temporary file is left"


def test_llama_indexs_own_store_fails_on_our_file_instead_of_loading_it_as_empty(tmp_path: Path) -> None:
    indexed(str(tmp_path))
    with pytest.raises(AttributeError):  # it expects a mapping, and the file contains a list
        StorageContext.from_defaults(persist_dir=str(tmp_path))
    text = (tmp_path / "default__vector_store.json").read_text(encoding="utf-8")
    assert text.startswith('["Nodes of an AntiphonVectorStore, format 1; load them with AntiphonVectorStore.from_pers')


def test_files_that_are_not_a_store_raise_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no vector store at .*nowhere\.json"):
        AntiphonVectorStore.from_persist_path(str(tmp_path / "nowhere.json"))
    for text in ("{", "{}", "[]", '["a", []]', json.dumps([HEADER, [[{}, [1.0]]]]), json.dumps([HEADER, 3])):
        (tmp_path / "other.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"other\.json is not a vector store of Antiphon"):
            AntiphonVectorStore.from_persist_path(str(tmp_path / "other.json"))


def test_a_store_can_be_persisted_to_any_fsspec_file_system() -> None:
    memory = MemoryFileSystem()
    store = AntiphonVectorStore()
    store.add(nodes())
    store.persist("/bees/default__vector_store.json", fs=memory)
    again = AntiphonVectorStore.from_persist_dir("/bees", fs=memory)
    assert [node.node_id for node in again.get_nodes()] == [node.node_id for node in nodes()]
