"""Clients of other frameworks send the result of `references_for` unchanged in the body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_openai import ChatOpenAI
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike

from antiphon.integrations.vllm import references_for
from tests.accel.fake_server import ANSWER, FakeServer, run_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with run_server(FakeServer(owner="vllm")) as running:
        yield running


def test_chat_openai_sends_references_and_prediction(server: FakeServer) -> None:
    settings: dict[str, Any] = {"base_url": server.url, "api_key": "none", "streaming": True, "max_tokens": 20}
    model = ChatOpenAI(model="tiny", **settings)
    said = model.invoke("How do bees live?", extra_body=references_for([Document(ANSWER)], prediction="Bees"))
    assert said.content == ANSWER
    assert server.requests[0]["vllm_xargs"] == {"references": [ANSWER], "prediction": "Bees"}


def test_openai_like_sends_references(server: FakeServer) -> None:
    body = references_for([NodeWithScore(node=TextNode(text=ANSWER))])
    settings: dict[str, Any] = {"api_base": server.url, "api_key": "none", "is_chat_model": True, "max_tokens": 20}
    model = OpenAILike(model="tiny", additional_kwargs={"extra_body": body}, **settings)
    assert "".join(piece.delta or "" for piece in model.stream_complete("How do bees live?")) == ANSWER
    assert server.requests[0]["vllm_xargs"] == {"references": [ANSWER]}
