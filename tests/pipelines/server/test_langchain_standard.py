"""LangChain's own standard tests with its ChatOpenAI, whose address is this server's.

The model behind it calls tools by rule, as no embedded one does; an object is decoded under the grammar of its schema
from the scores of a tiny random model, to which quotation marks are made likely, so that its strings end.

Skipped are pictures, sounds and PDFs, in messages and in what tools say: this server reads texts. So is the stream that
is timed from a tape: there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.integrations.scripted import Scripted
from tests.pipelines.server.listening import listening


@pytest.fixture(scope="module", autouse=True)
def _served() -> Iterator[None]:
    service = make_service(Scripted(), ServerSettings(), name="scripted")
    with listening(create_app(service)) as TestChatOpenAI.address:
        yield


@pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1 schema")  # ChatOpenAI takes tools for those
@pytest.mark.filterwarnings(
    "ignore:Pydantic serializer warnings"
)  # of what openai-python has read itself, dumped again
class TestChatOpenAI(ChatModelIntegrationTests):
    address: str

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        served = {"base_url": f"{self.address}/v1", "api_key": "none", "model": "scripted", "stream_usage": True}
        closing = httpx.AsyncClient(
            limits=httpx.Limits(max_keepalive_connections=0)
        )  # every test has a loop of its own
        how = {"max_completion_tokens": 200, "logit_bias": {ord('"'): 100}, "max_retries": 0}
        return served | how | {"http_async_client": closing}

    @property
    def model_override_value(self) -> str:
        return "scripted"

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True
