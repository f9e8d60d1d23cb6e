"""Retriever, reranker and embedding of both frameworks, alone and in the frameworks' own chains."""

from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.structured_query import Comparator, Comparison
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from antiphon.integrations.langchain import AntiphonReranker, AntiphonRetriever
from antiphon.integrations.llama_index import AntiphonRerank
from antiphon.retrieval import HashEmbedder, MaxSimReranker, Passage, Retriever, index_passages
from tests.conftest import TEXTS
from tests.integrations.frameworks import FRAMEWORKS, LANGCHAIN, LLAMA_INDEX, Retrieval

QUESTION = "How many eggs does a queen lay?"


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Retrieval:
    return FRAMEWORKS[request.param]


@pytest.fixture
def years(tmp_path: Path) -> Path:
    """An index of passages with metadata."""
    passages = [Passage.at(f"{year}.txt", 0, f"Bees of {year} dance.", {"year": year}) for year in (2022, 2023, 2024)]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    return tmp_path / "index"


def test_a_passage_survives_conversion_and_back(framework: Retrieval, passages: list[Passage]) -> None:
    scored = Passage("text", "id", "a.txt", 3, 7, 0.5, {"title": "A"})
    for passage in [*passages, scored]:
        assert framework.passage(framework.result(passage)) == passage


async def test_the_retriever_returns_the_passages_of_antiphons_retriever(
    framework: Retrieval, retriever: Retriever, index_folder: Path
) -> None:
    expected = [framework.result(passage) for passage in retriever.search(QUESTION, 2)]
    wrapped = framework.retriever(retriever=retriever, k=2)
    assert framework.search(wrapped, QUESTION) == expected
    assert framework.search(framework.retriever.open(index_folder, k=2), QUESTION) == expected
    found = await (wrapped.ainvoke if framework is LANGCHAIN else wrapped.aretrieve)(QUESTION)
    assert found == expected
    assert found[0].metadata["source"] == "bees.txt"


async def test_embeddings_return_the_embedders_vectors(framework: Retrieval) -> None:
    embedding, embedder = framework.embedding("hash"), HashEmbedder()
    query, expected = embedder.embed_queries([QUESTION])[0].tolist(), embedder.embed_documents(TEXTS).tolist()
    if framework is LANGCHAIN:
        assert (embedding.embed_query(QUESTION), embedding.embed_documents(list(TEXTS))) == (query, expected)
        return
    assert embedding.model_name == "hash"
    assert embedding.get_query_embedding(QUESTION) == await embedding.aget_query_embedding(QUESTION) == query
    assert embedding.get_text_embedding_batch(list(TEXTS)) == expected
    assert await embedding.aget_text_embedding_batch(list(TEXTS)) == expected
    assert embedding.get_text_embedding(TEXTS[0]) == await embedding.aget_text_embedding(TEXTS[0]) == expected[0]


def test_a_reranker_without_arguments_needs_no_index() -> None:
    texts = ["Drones leave the hive in autumn.", "A queen lays two thousand eggs a day.", "Wax is made by workers."]
    documents = [Document(text) for text in texts]
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    found = AntiphonReranker(top_n=2).compress_documents(documents, QUESTION)
    ranked = AntiphonRerank(top_n=2).postprocess_nodes(nodes, query_str=QUESTION)
    assert [len(found), len(ranked)] == [2, 2]
    assert found[0].page_content == ranked[0].node.get_content() == texts[1]


def test_the_reranker_returns_the_order_of_antiphons_and_keeps_what_was_given(
    framework: Retrieval, retriever: Retriever, passages: list[Passage]
) -> None:
    assert isinstance(retriever.reranker, MaxSimReranker)
    given = [
        Document(passage.text, metadata={"number": number})
        if framework is LANGCHAIN
        else NodeWithScore(node=TextNode(text=passage.text, metadata={"number": number}), score=0.25)
        for number, passage in enumerate(passages)
    ]
    expected = [(each.text, each.score) for each in retriever.reranker.rerank(QUESTION, passages)]
    ranked = framework.rerank(retriever.reranker, 2, given, QUESTION)
    found = [passage for each in ranked if (passage := framework.passage(each))]
    assert [(passage.text, passage.score) for passage in found] == expected[:2]
    assert found[0].metadata["number"] == 2
    before = None if framework is LANGCHAIN else 0.25
    assert [getattr(framework.passage(each), "score", 0) for each in given] == [before] * 3
    assert len(framework.rerank(retriever.reranker, None, given, QUESTION)) == 3
    assert framework.rerank(retriever.reranker, 2, [], QUESTION) == []
    with pytest.raises(ValueError, match="top_n"):
        framework.rerank(retriever.reranker, 0, given, QUESTION)


def test_a_retriever_takes_filters_with_operators_and_refuses_unknown_ones(framework: Retrieval, years: Path) -> None:
    later = framework.retriever.open(years, where={"year": {"$gte": 2023}})
    assert sorted(found.metadata["year"] for found in framework.search(later, "bees")) == [2023, 2024]
    with pytest.raises(ValueError, match=r"There is no operator '\$near' \(for 'year'\)"):
        framework.retriever.open(years, where={"year": {"$near": 2023}})


def test_a_retriever_takes_the_filters_of_its_framework(years: Path) -> None:
    query = Comparison(comparator=Comparator.LT, attribute="year", value=2023)
    earlier = LANGCHAIN.search(AntiphonRetriever.open(years, where=query), "bees")
    assert [found.metadata["year"] for found in earlier] == [2022]
    filters = MetadataFilters(filters=[MetadataFilter(key="year", value=[2022, 2024], operator=FilterOperator.IN)])
    nodes = LLAMA_INDEX.search(LLAMA_INDEX.retriever.open(years, where=filters), "bees")
    assert sorted(node.metadata["year"] for node in nodes) == [2022, 2024]


def test_the_filter_of_a_langchain_call_replaces_that_of_the_field(years: Path) -> None:
    always = AntiphonRetriever.open(years, where={"year": 2022})
    assert [found.metadata["source"] for found in always.invoke("bees")] == ["2022.txt"]
    assert [found.metadata["source"] for found in always.invoke("bees", where={"source": "2023.txt"})] == ["2023.txt"]
    assert len(always.invoke("bees", where={})) == 3
    either = {"$or": [{"year": 2022}, {"$not": {"year": {"$lt": 2024}}}]}
    assert sorted(found.metadata["year"] for found in always.invoke("bees", where=either)) == [2022, 2024]


def test_scores_are_cosines_that_cutoffs_can_use(framework: Retrieval, tmp_path: Path) -> None:
    texts = ("Bees dance in the hive.", "Taxes are due.")
    index_passages([Passage.at(f"{text}.txt", 0, text) for text in texts], tmp_path / "index", HashEmbedder())
    found = framework.search(framework.retriever.open(tmp_path / "index"), "bees dance in the hive")
    passages = [passage for each in found if (passage := framework.passage(each))]
    assert [(passage.text, (passage.score or 0) > 0.5) for passage in passages] == [(texts[0], True), (texts[1], False)]
    if framework is LLAMA_INDEX:
        kept = SimilarityPostprocessor(similarity_cutoff=0.5).postprocess_nodes(found)
        assert [node.text for node in kept] == [texts[0]]


def test_langchains_indexing_api_adds_updates_and_deletes_documents(years: Path) -> None:
    retriever = AntiphonRetriever.open(years, embedder=HashEmbedder(), reranker=None)
    before = len(retriever.retriever.index.sources())  # type: ignore[attr-defined]
    records = InMemoryRecordManager("docs")
    records.create_schema()

    def run(*texts: str) -> tuple[int, int, int]:
        documents = [Document(text, metadata={"source": "new.md"}) for text in texts]
        done = index(documents, records, retriever, cleanup="incremental", source_id_key="source", key_encoder="sha256")
        return done["num_added"], done["num_skipped"], done["num_deleted"]

    assert run("Zebras have stripes.", "Wasps sting.") == (2, 0, 0)
    assert retriever.invoke("Zebras have stripes.", k=1)[0].page_content == "Zebras have stripes."
    assert run("Zebras have stripes.", "Wasps sleep.") == (1, 1, 1)
    assert retriever.invoke("Wasps", k=1)[0].page_content == "Wasps sleep."
    assert len(retriever.retriever.index.sources()) == before + 1  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="ids is None"):
        retriever.delete()
