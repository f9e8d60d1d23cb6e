"""LangChain's standard tests of a chat model, run with ChatOpenAI against this server.

The model behind the server is scripted: it calls tools by rule, which no bundled model does. JSON objects are decoded
under the grammar of their schema with a tiny random model; a bias makes quotation marks likely, so that strings end.

Tests of images, audio and PDFs are skipped because this server supports text only, and the timed stream because there
is no recording of it.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.integrations.scripted_model import ScriptedModel
from tests.pipelines.server.live_server import live_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _served() -> Iterator[None]:
    service = make_service(ScriptedModel(), ServerSettings(), name="scripted")
    with live_server(create_app(service)) as TestChatOpenAI.address:
        yield


@pytest.mark.filterwarnings(
    "ignore:Received a Pydantic BaseModel V1 schema"
)  # ChatOpenAI mistakes tools for such models
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of objects that openai-python has parsed
class TestChatOpenAI(ChatModelIntegrationTests):
    address: str

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        served = {"base_url": f"{self.address}/v1", "api_key": "none", "model": "scripted", "stream_usage": True}
        http_client = httpx.AsyncClient(
            limits=httpx.Limits(max_keepalive_connections=0)
        )  # each test has a separate event loop
        options = {"max_completion_tokens": 200, "logit_bias": {ord('"'): 100}, "max_retries": 0}
        return served | options | {"http_async_client": http_client}

    @property
    def model_override_value(self) -> str:
        return "scripted"

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True
