"""Objects of both frameworks survive pickling and copying completely, or raise."""

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.integrations import langchain, llama_index
from antiphon.retrieval import HashEmbedder, MaxSimReranker, Retriever

pytestmark = pytest.mark.slow

QUESTION = "What do bees do?"


@pytest.fixture
def folder(tmp_path: Path, tiny: LanguageModel) -> str:
    tiny.model.save_pretrained(tmp_path / "model")
    tiny.tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def text_of(model: Any) -> str:
    return str(model.complete(QUESTION) if hasattr(model, "complete") else model.invoke(QUESTION).text)


MODELS: dict[str, Any] = {
    "chat": langchain.ChatAntiphon,
    "llm": langchain.AntiphonLLM,
    "llama-index": llama_index.AntiphonLLM,
}


@pytest.mark.parametrize("kind", ["chat", "llama-index"])
def test_a_model_loaded_by_name_is_loaded_again_by_unpickling(kind: str, folder: str) -> None:
    model: Any = MODELS[kind](model=folder, max_tokens=5)
    again = pickle.loads(pickle.dumps(model))
    assert again.language_model is not model.language_model
    assert (again.max_tokens, again.model, text_of(again)) == (5, folder, text_of(model))


@pytest.mark.parametrize("kind", MODELS)
def test_pickling_a_model_passed_as_an_object_raises_with_the_remedy(kind: str, tiny: LanguageModel) -> None:
    model: Any = MODELS[kind](language_model=tiny)
    with pytest.raises(TypeError, match=r"was given a language_model, which cannot be pickled; pass model="):
        pickle.dumps(model)


@pytest.mark.parametrize("kind", MODELS)
def test_copies_of_a_model_share_the_language_model(kind: str, tiny: LanguageModel) -> None:
    model: Any = MODELS[kind](language_model=tiny, stop=["x"])
    for copied in (copy.copy(model), copy.deepcopy(model), model.model_copy(deep=True)):
        assert copied.language_model is tiny
        assert copied.stop == ["x"]
    deep = copy.deepcopy(model)
    deep.stop.append("y")
    assert model.stop == ["x"]


def holders(retriever: Retriever) -> list[Any]:
    """Return all objects that hold an index or a reranker, which contain locks."""
    reranker = MaxSimReranker(HashEmbedder())
    return [
        langchain.AntiphonRetriever(retriever=retriever),
        langchain.AntiphonReranker(reranker=reranker),
        llama_index.AntiphonRetriever(retriever),
        llama_index.AntiphonRerank(reranker=reranker),
    ]


def test_pickling_an_object_with_a_lock_raises_with_its_name_and_the_remedy(
    retriever: Retriever, caplog: pytest.LogCaptureFixture
) -> None:
    remedy = "which cannot be pickled .*; create the object again instead"
    with caplog.at_level(logging.WARNING):
        for holder in holders(retriever):
            with pytest.raises(
                TypeError,
                match=rf"^{type(holder).__name__} holds a .*, {remedy}",
            ):
                pickle.dumps(holder)
    assert caplog.messages == [], "LlamaIndex warns if it omits an attribute"


def test_deep_copies_share_the_index_or_reranker(retriever: Retriever) -> None:
    for holder in holders(retriever):
        deep = copy.deepcopy(holder)
        assert type(deep) is type(holder)
        shared = (
            "reranker" if hasattr(holder, "reranker") else "retriever" if hasattr(holder, "retriever") else "searcher"
        )
        assert getattr(deep, shared) is getattr(holder, shared)


def test_unpickled_embeddings_return_the_same_vectors() -> None:
    for made, ask in (
        (langchain.AntiphonEmbeddings("hash"), "embed_query"),
        (llama_index.AntiphonEmbedding("hash"), "get_query_embedding"),
    ):
        assert getattr(pickle.loads(pickle.dumps(made)), ask)("bees") == getattr(made, ask)("bees")


def test_what_llama_index_saves_as_a_dictionary_is_loaded_again(folder: str) -> None:
    embedding = llama_index.AntiphonEmbedding("hash", embed_batch_size=7)
    again = llama_index.AntiphonEmbedding.from_dict(embedding.to_dict())
    assert (again.model_name, again.embed_batch_size) == ("hash", 7)
    assert llama_index.AntiphonEmbedding.from_json(embedding.to_json()).get_query_embedding("bees")
    model = llama_index.AntiphonLLM(model=folder, max_tokens=7)
    assert llama_index.AntiphonLLM.from_dict(model.to_dict()).max_tokens == 7
    reranker = llama_index.AntiphonRerank(reranker=MaxSimReranker(HashEmbedder()), top_n=2)
    assert llama_index.AntiphonRerank.from_dict(reranker.to_dict()).top_n == 2
