"""The LangChain store, retriever, reranker and embeddings, alone and in LangChain's own chains."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.structured_query import Comparator, Comparison
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import (
    AntiphonEmbeddings,
    AntiphonReranker,
    AntiphonRetriever,
    AntiphonVectorStore,
    ChatAntiphon,
)
from antiphon.integrations.langchain.documents import document_of, passage_of
from antiphon.integrations.llama_index import AntiphonRetriever as LlamaRetriever
from antiphon.retrieval import HashEmbedder, IndexMismatch, MaxSimReranker, Passage, Retriever, index_passages
from tests.conftest import TEXTS

QUESTION = "How many eggs does a queen lay?"


@pytest.fixture
def store(passages: list[Passage]) -> AntiphonVectorStore:
    store = AntiphonVectorStore(AntiphonEmbeddings("hash"))
    store.add_documents([document_of(passage) for passage in passages])
    return store


def test_a_passage_survives_conversion_to_a_document_and_back(passages: list[Passage]) -> None:
    for passage in passages:
        assert passage_of(document_of(passage)) == passage
    scored = Passage("text", "id", "a.txt", 3, 7, 0.5, {"title": "A"})
    assert passage_of(document_of(scored)) == scored


def test_the_retriever_returns_the_passages_of_antiphons_retriever(retriever: Retriever, index_folder: Path) -> None:
    expected = [document_of(passage) for passage in retriever.search(QUESTION, 2)]
    assert AntiphonRetriever(retriever=retriever, k=2).invoke(QUESTION) == expected
    assert AntiphonRetriever.open(index_folder, k=1).invoke(QUESTION, k=2) == expected
    assert expected[0].metadata["source"] == "bees.txt"
    assert expected[0].metadata["relevance_score"] > expected[1].metadata["relevance_score"]


def test_store_search_is_exact(store: AntiphonVectorStore) -> None:
    embedder = HashEmbedder()
    cosines = embedder.embed_queries([QUESTION]) @ embedder.embed_documents(TEXTS).T
    found = store.similarity_search_with_score(QUESTION, k=9)
    assert [document.page_content for document, _ in found] == [TEXTS[row] for row in np.argsort(-cosines[0])]
    assert [score for _, score in found] == pytest.approx(sorted(cosines[0].tolist(), reverse=True))
    assert store.similarity_search_by_vector(embedder.embed_queries([QUESTION])[0].tolist(), k=1) == [found[0][0]]
    ((_, relevance),) = store.similarity_search_with_relevance_scores(QUESTION, k=1)
    assert relevance == pytest.approx(found[0][1])


def test_documents_added_or_deleted_after_a_search_affect_the_next_search(store: AntiphonVectorStore) -> None:
    best = store.similarity_search(QUESTION, k=1)[0]
    store.delete([str(best.id)])
    assert best not in store.similarity_search(QUESTION, k=3)
    store.add_documents([best])
    assert store.similarity_search(QUESTION, k=1) == [best]


def test_filtered_search_returns_the_best_documents_that_pass(store: AntiphonVectorStore) -> None:
    best, second, third = store.similarity_search(QUESTION, k=3)
    wanted = {"start_index": third.metadata["start_index"]}
    assert store.similarity_search(QUESTION, k=1, filter=wanted) == [third]
    assert store.similarity_search(QUESTION, k=1, filter=lambda found: found != best) == [second]
    assert store.similarity_search(QUESTION, filter={"start_index": 7}) == []
    assert store.similarity_search(QUESTION, filter={"chapter": None}) == []
    assert store.as_retriever(search_kwargs={"k": 1, "filter": wanted}).invoke(QUESTION) == [third]


def test_marginal_relevance_omits_near_duplicates(store: AntiphonVectorStore) -> None:
    best = store.similarity_search(QUESTION, k=1)[0]
    store.add_texts([best.page_content + " Indeed."])
    near = store.similarity_search(QUESTION, k=2)
    unlike = store.max_marginal_relevance_search(QUESTION, k=2, lambda_mult=0.1)
    assert {best.page_content, best.page_content + " Indeed."} == {document.page_content for document in near}
    assert unlike[0] == near[0]
    assert unlike[1] not in near
    assert AntiphonVectorStore(AntiphonEmbeddings("hash")).max_marginal_relevance_search("anything") == []


def test_changing_a_returned_document_does_not_change_the_store(store: AntiphonVectorStore) -> None:
    found = store.similarity_search(QUESTION, k=1)[0]
    found.metadata["source"] = "changed"
    assert store.similarity_search(QUESTION, k=1)[0].metadata["source"] == "bees.txt"
    store.get_by_ids([str(found.id)])[0].metadata["source"] = "changed"
    assert store.get_by_ids([str(found.id)])[0].metadata["source"] == "bees.txt"


def test_a_saved_store_is_an_index_that_store_and_retriever_open(store: AntiphonVectorStore, tmp_path: Path) -> None:
    store.save(tmp_path / "index")
    opened = AntiphonVectorStore.open(tmp_path / "index")
    assert opened.similarity_search_with_score(QUESTION, 3) == store.similarity_search_with_score(QUESTION, 3)
    first = Retriever.open(tmp_path / "index").search(QUESTION, 1)[0]
    assert (first.text, first.source, first.start) == (TEXTS[2], "bees.txt", 200)
    opened.delete([first.id])
    opened.save(tmp_path / "index")
    assert len(AntiphonVectorStore.open(tmp_path / "index")) == 2
    with pytest.raises(IndexMismatch):
        AntiphonVectorStore.open(tmp_path / "index", embedder=HashEmbedder(64))


def test_wrong_arguments_of_a_store_raise(store: AntiphonVectorStore, tmp_path: Path) -> None:
    foreign = AntiphonVectorStore.from_texts(["a"], DeterministicFakeEmbedding(size=6))
    with pytest.raises(TypeError, match="DeterministicFakeEmbedding"):
        foreign.save(tmp_path / "index")
    with pytest.raises(ValueError, match="2 texts and 1 ids"):
        store.add_texts(["a", "b"], ids=["1"])
    with pytest.raises(ValueError, match="1 texts and 2 metadatas"):
        store.add_texts(["a"], [{}, {}])
    with pytest.raises(TypeError, match="Unknown option 'batch'"):
        store.add_texts(["a"], batch=3)


def test_a_store_is_thread_safe() -> None:
    store = AntiphonVectorStore(AntiphonEmbeddings("hash"))

    def work(number: int) -> int:
        (identifier,) = store.add_texts([f"bee number {number}"])
        found = store.similarity_search(f"bee number {number}", k=1)[0]
        if number % 2:
            store.delete([identifier])
        return int(found.page_content == f"bee number {number}")

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(60))) == 60
    assert len(store) == 30


def test_the_reranker_returns_ranked_copies(retriever: Retriever, passages: list[Passage]) -> None:
    assert isinstance(retriever.reranker, MaxSimReranker)
    documents = [Document(passage.text, metadata={"number": number}) for number, passage in enumerate(passages)]
    reranker = AntiphonReranker(reranker=retriever.reranker, top_n=2)
    ranked = reranker.compress_documents(documents, QUESTION)
    expected = retriever.reranker.rerank(QUESTION, passages)
    assert [document.page_content for document in ranked] == [passage.text for passage in expected[:2]]
    assert [document.metadata["relevance_score"] for document in ranked] == [passage.score for passage in expected[:2]]
    assert ranked[0].metadata["number"] == 2
    assert all("relevance_score" not in document.metadata for document in documents)
    assert len(AntiphonReranker(reranker=retriever.reranker).compress_documents(documents, QUESTION)) == 3
    assert reranker.compress_documents([], QUESTION) == []
    with pytest.raises(ValueError, match="top_n"):
        AntiphonReranker(reranker=retriever.reranker, top_n=0)


def test_langchains_compression_retriever_works_with_store_and_reranker(
    store: AntiphonVectorStore, retriever: Retriever
) -> None:
    assert retriever.reranker is not None
    compression = ContextualCompressionRetriever(
        base_compressor=AntiphonReranker(reranker=retriever.reranker, top_n=1),
        base_retriever=store.as_retriever(search_kwargs={"k": 3}),
    )
    assert [document.page_content for document in compression.invoke(QUESTION)] == [TEXTS[2]]


async def test_langchains_retrieval_chain_gives_the_models_answer(retriever: Retriever, tiny: LanguageModel) -> None:
    chat = ChatAntiphon(language_model=tiny, max_tokens=12)
    prompt = ChatPromptTemplate.from_template("{context}\n\n{input}")
    chain: Any = create_retrieval_chain(
        AntiphonRetriever(retriever=retriever, k=2), create_stuff_documents_chain(chat, prompt)
    )
    found = retriever.search(QUESTION, 2)
    text = "\n\n".join(passage.text for passage in found) + f"\n\n{QUESTION}"
    expected = tiny.generate([{"role": "user", "content": text}], max_new_tokens=12).text
    answer = chain.invoke({"input": QUESTION})
    assert answer["answer"] == expected
    assert [document.id for document in answer["context"]] == [passage.id for passage in found]
    assert (await chain.ainvoke({"input": QUESTION}))["answer"] == expected
    assert "".join(part.get("answer", "") for part in chain.stream({"input": QUESTION})) == expected


def test_a_retriever_filters_by_metadata_of_the_field_or_of_the_call(tmp_path: Path) -> None:
    passages = [Passage.at(f"{name}.txt", 0, f"Bees of {name} dance.", {"lang": name}) for name in ("de", "en", "fr")]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    always = AntiphonRetriever.open(tmp_path / "index", where={"lang": "de"})
    assert [document.metadata["source"] for document in always.invoke("bees")] == ["de.txt"]
    assert [document.metadata["source"] for document in always.invoke("bees", where={"source": "en.txt"})] == ["en.txt"]
    assert len(always.invoke("bees", where={})) == 3
    nodes = LlamaRetriever.open(tmp_path / "index", where={"lang": "fr"}).retrieve("bees")
    assert [node.node.metadata["source"] for node in nodes] == ["fr.txt"]


def test_a_retriever_takes_filters_with_operators_and_refuses_unknown_ones(tmp_path: Path) -> None:
    passages = [Passage.at(f"{year}.txt", 0, f"Bees of {year} dance.", {"year": year}) for year in (2022, 2023, 2024)]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    later = AntiphonRetriever.open(tmp_path / "index", where={"year": {"$gte": 2023}})
    assert sorted(found.metadata["year"] for found in later.invoke("bees")) == [2023, 2024]
    either = {"$or": [{"year": 2022}, {"$not": {"year": {"$lt": 2024}}}]}
    assert sorted(found.metadata["year"] for found in later.invoke("bees", where=either)) == [2022, 2024]
    query = Comparison(comparator=Comparator.LT, attribute="year", value=2023)
    earlier = AntiphonRetriever.open(tmp_path / "index", where=query)
    assert [found.metadata["year"] for found in earlier.invoke("b")] == [2022]
    filters = MetadataFilters(filters=[MetadataFilter(key="year", value=[2022, 2024], operator=FilterOperator.IN)])
    nodes = LlamaRetriever.open(tmp_path / "index", where=filters).retrieve("bees")
    assert sorted(node.metadata["year"] for node in nodes) == [2022, 2024]
    for kind in (AntiphonRetriever, LlamaRetriever):
        with pytest.raises(ValueError, match=r"There is no operator '\$near' \(for 'year'\)"):
            kind.open(tmp_path / "index", where={"year": {"$near": 2023}})


def test_a_store_takes_filters_with_operators(store: AntiphonVectorStore) -> None:
    everything = store.similarity_search(QUESTION, k=100)
    starts = sorted(document.metadata["start_index"] for document in everything)
    middle = starts[len(starts) // 2]
    found = store.similarity_search(QUESTION, k=100, filter={"start_index": {"$gte": middle}})
    assert found == [document for document in everything if document.metadata["start_index"] >= middle]
    with pytest.raises(ValueError, match=r"There is no operator '\$regex'"):
        store.similarity_search(QUESTION, filter={"source": {"$regex": "b"}})


def test_mmr_returns_k_documents_also_if_fewer_are_fetched(store: AntiphonVectorStore) -> None:
    total = len(store)
    assert total > 2
    assert len(store.max_marginal_relevance_search(QUESTION, k=total, fetch_k=1)) == total


def test_similarity_thresholds_of_langchain_keep_relevant_documents_only(tmp_path: Path) -> None:
    passages = [Passage.at(f"{n}.txt", 0, text) for n, text in enumerate(["Bees dance in the hive.", "Taxes are due."])]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    store = AntiphonVectorStore.open(tmp_path / "index", embedder=HashEmbedder())
    limited = store.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.5})
    assert [found.page_content for found in limited.invoke("bees dance in the hive")] == ["Bees dance in the hive."]
    found = AntiphonRetriever.open(tmp_path / "index").invoke("bees dance in the hive")
    assert [document.metadata["relevance_score"] > 0.5 for document in found] == [True, False]


def test_similarity_cutoffs_of_llama_index_keep_relevant_nodes_only(tmp_path: Path) -> None:
    passages = [Passage.at(f"{n}.txt", 0, text) for n, text in enumerate(["Bees dance in the hive.", "Taxes are due."])]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    nodes = LlamaRetriever.open(tmp_path / "index").retrieve("bees dance in the hive")
    kept = SimilarityPostprocessor(similarity_cutoff=0.5).postprocess_nodes(nodes)
    assert [node.text for node in kept] == ["Bees dance in the hive."]


def test_repeated_documents_are_listed_in_the_metadata(tmp_path: Path) -> None:
    passages = [Passage.at(f"{n}.txt", 0, "Bees dance in the hive.") for n in range(3)]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    [document] = AntiphonRetriever.open(tmp_path / "index").invoke("bees dance")
    sources = [document.metadata["source"], *document.metadata["also_in"]]
    assert sorted(sources) == ["0.txt", "1.txt", "2.txt"]
    [node] = LlamaRetriever.open(tmp_path / "index").retrieve("bees dance")
    assert [node.metadata["source"], *node.metadata["also_in"]] == sources
