"""LangChain's standard test suites for the chat model, embeddings and retriever, through the thin distribution."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
)
from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from langchain_antiphon import AntiphonEmbeddings, AntiphonRetriever, ChatAntiphon
from tests.conftest import TEXTS
from tests.integrations.scripted_model import ScriptedModel

pytestmark = pytest.mark.slow

scripted = cache(ScriptedModel)


@cache
def saved() -> str:
    """Return a folder with a tiny model."""
    folder = mkdtemp()
    scripted().model.save_pretrained(folder)
    scripted().tokenizer.save_pretrained(folder)
    return folder


class ChatModelClass:
    @property
    def chat_model_class(self) -> type[ChatAntiphon]:
        return ChatAntiphon


class TestChatModelUnit(ChatModelClass, ChatModelUnitTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": saved()}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"ANTIPHON_MODEL": saved()}, {}, {"model": saved()}


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # one test is skipped: no HTTP to record
class TestChatModel(ChatModelClass, ChatModelIntegrationTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"language_model": scripted(), "model": "scripted", "max_tokens": 8}

    @property
    def model_override_value(self) -> str:
        return saved()

    @property
    def enable_vcr_tests(self) -> bool:
        return True  # a local model sends no HTTP requests: nothing is recorded, and the test runs the model

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


class EmbeddingsClass:
    @property
    def embeddings_class(self) -> type[AntiphonEmbeddings]:
        return AntiphonEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"embedder": "hash"}


class TestEmbeddingsUnit(EmbeddingsClass, EmbeddingsUnitTests):
    pass


class TestEmbeddings(EmbeddingsClass, EmbeddingsIntegrationTests):
    pass


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
