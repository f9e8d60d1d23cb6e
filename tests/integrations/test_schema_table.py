"""Objects of pydantic classes through OpenAI's client, LangChain and LlamaIndex: every schema is followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from llama_index.core.prompts import PromptTemplate
from openai import OpenAI

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.llama_index import AntiphonLLM
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.schema_table import CLASSES

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

LIMIT = 500


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(tiny_model(max_position_embeddings=8192), byte_tokenizer(), name="tiny", recycling=False)


@pytest.fixture(scope="module")
def client(model: LanguageModel) -> Iterator[OpenAI]:
    with TestClient(create_app(make_service(model, ServerSettings(), name="tiny"))) as http:
        transport: Any = http
        yield OpenAI(base_url="http://testserver/v1", api_key="none", http_client=transport, max_retries=0)


table = pytest.mark.parametrize("described", CLASSES, ids=lambda described: described.__name__)


@table
def test_openais_client_parses_every_answer(client: OpenAI, described: Any) -> None:
    messages: Any = [{"role": "user", "content": "A bee."}]
    answer = client.chat.completions.parse(
        model="tiny", messages=messages, response_format=described, max_tokens=LIMIT, temperature=1.0, top_p=0.5, seed=3
    )
    assert isinstance(answer.choices[0].message.parsed, described)


@table
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_returns_an_object(model: LanguageModel, described: Any, method: str) -> None:
    chat = ChatAntiphon(language_model=model, max_tokens=LIMIT, temperature=1.0, top_p=0.5, seed=3)
    assert isinstance(chat.with_structured_output(described, method=method).invoke("A bee."), described)


@table
def test_llama_index_returns_an_object(model: LanguageModel, described: Any) -> None:
    llm = AntiphonLLM(language_model=model, max_tokens=LIMIT, temperature=1.0, top_p=0.5, seed=3)
    assert isinstance(llm.structured_predict(described, PromptTemplate("A bee.")), described)
