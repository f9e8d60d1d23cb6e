"""Clients of other frameworks send the result of `references_for` unchanged in the body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_openai import ChatOpenAI
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]

from antiphon.integrations.vllm import references_for
from tests.accel.speaking import ANSWER, Speaking, serving


@pytest.fixture
def speaking() -> Iterator[Speaking]:
    with serving(Speaking(owner="vllm")) as server:
        yield server


def test_chat_openai_sends_references_and_prediction(speaking: Speaking) -> None:
    settings: dict[str, Any] = {"base_url": speaking.url, "api_key": "none", "streaming": True, "max_tokens": 20}
    model = ChatOpenAI(model="tiny", **settings)
    said = model.invoke("How do bees live?", extra_body=references_for([Document(ANSWER)], prediction="Bees"))
    assert said.content == ANSWER
    assert speaking.asked[0]["vllm_xargs"] == {"references": [ANSWER], "prediction": "Bees"}


def test_openai_like_sends_references(speaking: Speaking) -> None:
    body = references_for([NodeWithScore(node=TextNode(text=ANSWER))])
    settings: dict[str, Any] = {"api_base": speaking.url, "api_key": "none", "is_chat_model": True, "max_tokens": 20}
    model = OpenAILike(model="tiny", additional_kwargs={"extra_body": body}, **settings)
    assert "".join(piece.delta or "" for piece in model.stream_complete("How do bees live?")) == ANSWER
    assert speaking.asked[0]["vllm_xargs"] == {"references": [ANSWER]}
