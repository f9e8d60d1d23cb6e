"""The extractive model: answers are quoted without a language model, and are the same on every path."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from antiphon.pipelines import Chat, Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.extractive_model import EXTRACTIVE, ExtractiveModel
from antiphon.pipelines.prompt import REFUSAL
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import MiniLMEmbedder, Passage, Retriever, index_passages
from tests.pipelines.quoting import quotes_of

QUESTION = "How many eggs does a queen lay?"
UNANSWERED = "What does a ticket to Lisbon cost?"


@pytest.fixture(scope="module")
def index(passages: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extractive") / "index"
    index_passages(passages, folder, MiniLMEmbedder())
    return folder


@pytest.fixture(scope="module")
def rag(index: Path) -> Rag:
    return Rag(Retriever.open(index), k=3)


@pytest.fixture(scope="module")
def client(rag: Rag) -> Iterator[TestClient]:
    docs = [Collection("docs", rag)]
    service = make_service(ExtractiveModel(), ServerSettings(), name=EXTRACTIVE, collections=docs)
    with TestClient(create_app(service)) as client:
        yield client


def ask_server(client: TestClient, question: str, **fields: Any) -> Any:
    body = {"model": "extractive+docs", "messages": [{"role": "user", "content": question}], **fields}
    return client.post("/v1/chat/completions", json=body)


def test_an_answer_consists_of_verbatim_quotes_and_names_its_author(rag: Rag) -> None:
    answer = rag.ask(QUESTION)
    quotes = quotes_of(answer.text)
    assert quotes
    for quote in quotes:
        assert quote.sentence in answer.passages[quote.number - 1].text
    assert answer.citations
    assert answer.model == EXTRACTIVE
    assert re.fullmatch(r"Quoted from [12] passages? in \d+\.\d s", answer.caption)
    assert (str(answer), f"{answer}") == (answer.text,) * 2
    assert answer.usage.total_tokens == answer.steps.steps == 0
    assert answer.as_dict()["model"] == EXTRACTIVE


def test_a_question_that_the_documents_do_not_answer_is_refused(rag: Rag) -> None:
    answer = rag.ask(UNANSWERED)
    assert answer.is_refusal
    assert answer.text.startswith(REFUSAL)
    assert answer.nearest
    assert re.fullmatch(r"Searched \d passages in \d+\.\d s", answer.caption)


def test_commands_and_the_server_give_the_same_answer(rag: Rag, index: Path, client: TestClient) -> None:
    text = rag.ask(QUESTION).text
    command = ["ask", QUESTION, "--index", str(index), "--k", "3", "--json"]
    told = json.loads(CliRunner().invoke(app, command).stdout)
    assert (told["text"], told["model"]) == (text, EXTRACTIVE)
    assert Chat(rag).ask(QUESTION).text == text
    result = ask_server(client, QUESTION).raise_for_status().json()
    assert result["choices"][0]["message"]["content"] == text
    assert result["usage"]["completion_tokens"] == 0
    lines = ask_server(client, QUESTION, stream=True).raise_for_status().text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"]) == text
    body = {"model": "extractive+docs", "input": QUESTION}
    output = client.post("/v1/responses", json=body).raise_for_status().json()["output"]
    assert output[-1]["content"][0]["text"] == text


def test_the_server_has_no_model_that_writes_and_says_so(client: TestClient) -> None:
    models = [each["id"] for each in client.get("/v1/models").json()["data"]]
    assert models == ["extractive+docs"]
    completion = client.post("/v1/completions", json={"model": "extractive+docs", "prompt": [1, 2]})
    assert completion.status_code == 400
    assert "answers questions" in completion.json()["error"]["message"]
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    refused = ask_server(client, QUESTION, response_format=schema)
    assert refused.status_code == 400
    assert "language model" in refused.json()["error"]["message"]
    assert ask_server(client, QUESTION, logprobs=True).status_code == 200
