"""Answers of the extractive model over HTTP: quoted lines are streamed first and are not counted as generated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel, Origin
from antiphon.pipelines import Rag
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.text_segments import SegmentTracker
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.pipelines.server.conftest import tiny_service

QUESTION = "How many eggs does a queen lay?"
BODY = {"model": "tiny+docs", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12}


@pytest.fixture
def index(passages: list[Passage], tmp_path: Path) -> Path:
    index_passages(passages, tmp_path / "index", HashEmbedder())
    return tmp_path / "index"


@pytest.fixture
def client(reader: LanguageModel, index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr("antiphon.pipelines.passage_selection.known_share", lambda *_: 99.0)
    with TestClient(create_app(tiny_service(reader, index))) as client:
        yield client


def test_the_answer_is_that_of_rag_and_quoted_tokens_are_prompt_tokens(
    client: TestClient, reader: LanguageModel, index: Path
) -> None:
    answer = Rag(Retriever.open(index), reader, k=2).ask(QUESTION, max_new_tokens=12)
    result = client.post("/v1/chat/completions", json=BODY).raise_for_status().json()
    message, usage = result["choices"][0]["message"], result["usage"]
    assert message["content"] == answer.text
    assert message["content"].startswith("[1] ")
    details = usage["prompt_tokens_details"]
    assert details["response_prefix_tokens"] == answer.usage.response_prefix_tokens > 20
    assert usage["prompt_tokens"] == answer.usage.prompt_tokens
    assert usage["completion_tokens"] == answer.usage.completion_tokens <= 12
    assert result["metrics"]["steps"] <= 12
    assert details["cached_tokens"] == 0, "no earlier request of this tenant prefilled it"


def test_the_quoted_lines_are_the_first_segments_of_the_stream(client: TestClient) -> None:
    body = {**BODY, "stream": True, "stream_options": {"include_segments": True}}
    lines = client.post("/v1/chat/completions", json=body).raise_for_status().text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    segments: list[dict[str, Any]] = [segment for chunk in chunks for segment in chunk.get("segments", ())]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert "".join(segment["text"] for segment in segments) == text
    quoted = [segment for segment in segments if segment.get("quoted")]
    assert segments[: len(quoted)] == quoted
    assert [segment["step"] for segment in quoted] == [None] * len(quoted)
    passages = next(chunk["passages"] for chunk in chunks if "passages" in chunk)
    for segment in quoted:
        if "passage" in segment:
            source = passages[segment["passage"] - 1]["text"]
            assert source[segment["start"] : segment["end"]] == segment["text"]
    assert any("passage" in segment for segment in quoted)


def test_a_refusal_is_reported_as_one(
    reader: LanguageModel, tiny: LanguageModel, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.pipelines.passage_selection.known_share", lambda *_: -99.0)
    with TestClient(create_app(tiny_service(reader, index))) as client:
        [refused] = client.post("/v1/chat/completions", json=BODY).raise_for_status().json()["choices"]
        assert refused["message"]["content"].startswith("The passages do not say.")
        streamed = client.post("/v1/chat/completions", json={**BODY, "stream": True}).raise_for_status().text
        alone = {**BODY, "model": "tiny", "max_tokens": 2}
        missing = client.post("/v1/chat/completions", json=alone)
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found"), "it needs documents"
    with TestClient(create_app(tiny_service(tiny, index))) as client:
        [plain] = client.post("/v1/chat/completions", json=alone).raise_for_status().json()["choices"]
    assert refused["refused"] is True
    assert '"refused":true' in streamed.replace(" ", "")
    assert "refused" not in plain, "there are no documents that it could be missing in"


@pytest.mark.parametrize(
    ("passage", "answer", "expected"),
    [
        ("🐝 Honey keeps\nfor years.", "keeps for", "keeps\nfor"),
        ("The eﬃcient ﬁlter ﬂoats.", "efficient filter", "eﬃcient ﬁlter"),
        ("The cafe\u0301 is open.", "café is", "cafe\u0301 is"),
        ("Ｃｏｄｅ ＡＢＣ is old.", "Code ABC is", "Ｃｏｄｅ ＡＢＣ is"),
        ("He said “no way” twice.", '"no way" twice', "“no way” twice"),
        ("यह पुस्तकालय है।", "पुस्तकालय", "पुस्तकालय"),
    ],
)
def test_a_drafted_segment_has_its_span_in_the_passage(passage: str, answer: str, expected: str) -> None:
    tracker = SegmentTracker([Passage.at("a.txt", 0, "Another text."), Passage.at("b.txt", 0, passage)])
    [segment] = tracker.push(answer, [Origin(0, len(answer), 1, True)])
    assert segment["passage"] == 2
    assert passage[segment["start"] : segment["end"]] == expected
