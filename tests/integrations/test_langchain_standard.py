"""LangChain's own standard tests, unit and integration, over chat model, embeddings, vector store and retriever."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

from antiphon.integrations.langchain import (
    AntiphonEmbeddings,
    AntiphonRetriever,
    AntiphonVectorStore,
    ChatAntiphon,
)
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.conftest import TEXTS
from tests.integrations.scripted import Scripted

scripted = cache(Scripted)


class TestChatModelUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[ChatAntiphon]:
        return ChatAntiphon

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"language_model": scripted(), "model": "scripted"}


class TestChatModel(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatAntiphon]:
        return ChatAntiphon

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"language_model": scripted(), "model": "scripted", "max_tokens": 8}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


class TestEmbeddingsUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[AntiphonEmbeddings]:
        return AntiphonEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"embedder": "hash"}


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[AntiphonEmbeddings]:
        return AntiphonEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"embedder": "hash"}


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return AntiphonVectorStore(self.get_embeddings())


@cache
def bees() -> Retriever:
    folder = Path(mkdtemp()) / "index"
    index_passages([Passage.at("bees.txt", 0, text) for text in TEXTS], folder, HashEmbedder())
    return Retriever.open(folder)


class TestRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[AntiphonRetriever]:
        return AntiphonRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": bees()}

    @property
    def retriever_query_example(self) -> str:
        return "How many eggs does a queen lay?"
