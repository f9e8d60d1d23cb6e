"""The tables of parameters in the docs are those of the request schemas and of OpenAI's client."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai.resources import Completions, Embeddings
from openai.resources.chat import Completions as ChatCompletions
from openai.resources.responses import Responses

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.request_schemas import (
    UNSUPPORTED,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
)
from antiphon.pipelines.server.responses_schema import STATEFUL, ResponseRequest
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.tiny import byte_tokenizer, tiny_model

PAGE = Path(__file__).parents[3] / "docs" / "api_parameters.md"
ENDPOINTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletions, ChatRequest, {"messages": [{"role": "user", "content": "Bees"}]}),
    "/v1/completions": (Completions, CompletionRequest, {"prompt": "Bees"}),
    "/v1/responses": (Responses, ResponseRequest, {"input": "Bees"}),
    "/v1/embeddings": (Embeddings, EmbeddingRequest, {"input": "Bees"}),
}
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def table(endpoint: str) -> dict[str, str]:
    """Return the status of each parameter of an endpoint in the docs."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n`{endpoint}`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (supported|ignored|refused) \|", section, re.MULTILINE)
    assert len(rows) == len(dict(rows)) == section.count("\n| `"), "every row has one of the three words"
    return dict(rows)


@pytest.fixture(scope="module")
def http() -> Iterator[TestClient]:
    model = LanguageModel(tiny_model(), byte_tokenizer(), name="tiny")
    with TestClient(create_app(make_service(model, ServerSettings(), name="tiny"))) as client:
        yield client


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_parameter_is_listed_with_what_the_server_does(endpoint: str) -> None:
    resource, schema, _ = ENDPOINTS[endpoint]
    listed, fields = table(endpoint), set(schema.model_fields)
    sent = set(inspect.signature(resource.create).parameters) - OF_THE_CLIENT
    assert sent | fields <= listed.keys()
    assert {name for name, status in listed.items() if status == "supported"} <= fields
    refused = {name for name, status in listed.items() if status == "refused"}
    assert refused <= {*UNSUPPORTED, *STATEFUL} - fields
    assert not {name for name, status in listed.items() if status == "ignored"} & {*UNSUPPORTED, *STATEFUL}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_refused_parameters_are_refused_by_name_and_ignored_ones_accepted(http: TestClient, endpoint: str) -> None:
    body = {"model": "tiny", **ENDPOINTS[endpoint][2]}
    for name, status in table(endpoint).items():
        if status == "refused":
            response = http.post(endpoint, json=body | {name: "given"})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    fields = ENDPOINTS[endpoint][1].model_fields
    ignored = {name: "given" for name, status in table(endpoint).items() if status == "ignored" and name not in fields}
    if endpoint != "/v1/embeddings":
        limit = "max_output_tokens" if endpoint == "/v1/responses" else "max_tokens"
        assert http.post(endpoint, json=body | ignored | {limit: 1}).status_code == 200
