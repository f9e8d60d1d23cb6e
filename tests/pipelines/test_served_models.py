"""A model behind an address in every command, over HTTP and MCP; defaults; suggestions; embedders behind an address."""

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI
from typer.testing import CliRunner, Result

from antiphon.accel import RemoteLanguageModel
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli import config as config_command
from antiphon.pipelines.models import suggestions
from antiphon.pipelines.server import streaming
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import Retriever
from antiphon.retrieval.embedders.remote_embedder import RemoteEmbedder
from tests.accel.fake_server import ANSWER, FakeServer, run_server
from tests.pipelines.server.live_server import live_server

pytestmark = pytest.mark.slow

QUESTION = "How do bees live?"
SEGMENTS = {"stream_options": {"include_segments": True}}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with run_server(FakeServer(models=("qwen3:4b", "nomic-embed-text"))) as running:
        yield running


@pytest.fixture
def client(retriever: Retriever, server: FakeServer) -> Iterator[OpenAI]:
    model = RemoteLanguageModel(server.url)
    docs = [Collection("docs", Rag(retriever, model, k=2))]
    service = make_service(model, ServerSettings(), name="qwen3:4b", collections=docs)
    with TestClient(create_app(service)) as client:
        transport: Any = client
        yield OpenAI(base_url="http://testserver/v1", api_key="none", http_client=transport, max_retries=0)


def run(*arguments: object, spoken: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=spoken)


def test_the_server_answers_from_documents_with_citations(client: OpenAI, server: FakeServer) -> None:
    asked: Any = {"model": "qwen3:4b+docs", "messages": [{"role": "user", "content": QUESTION}]}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == ANSWER
    assert whole.choices[0].message.annotations
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 15)
    chunks = [*client.chat.completions.create(**asked, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert len(chunks) > 10, "pieces are passed on as they arrive"
    assert "bees" in json.dumps(server.requests[0]["messages"]).lower()
    server.pieces = (ANSWER,)
    segments = client.chat.completions.create(**asked, stream=True, extra_body=SEGMENTS)
    assert not any(each.get("quoted") for chunk in segments for each in getattr(chunk, "segments", None) or ())


def test_the_model_alone_takes_tools_schemas_and_texts(client: OpenAI, server: FakeServer) -> None:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    schema: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    messages: Any = [{"role": "user", "content": QUESTION}]
    client.completions.create(model="qwen3:4b", prompt="Bees")
    client.chat.completions.create(model="qwen3:4b", messages=messages, response_format=schema)
    server.pieces, server.calls = (), ({"index": 0, "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},)
    asked: Any = {"model": "qwen3:4b", "messages": messages, "tools": [tool], "tool_choice": "required"}
    called: Any = client.chat.completions.create(**asked)
    [call] = called.choices[0].message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Bonn"})
    text, formed, offered = server.requests
    assert (text["prompt"], formed["response_format"]["type"], offered["tool_choice"]) == (
        "Bees",
        "json_schema",
        "required",
    )


def test_a_client_that_leaves_closes_the_connection_to_the_server(retriever: Retriever, server: FakeServer) -> None:
    server.pieces, server.pause = ("word ",) * 4000, 0.02
    service = make_service(RemoteLanguageModel(server.url), ServerSettings(), name="remote")
    with live_server(create_app(service)) as address, OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": QUESTION}]
        with client.chat.completions.create(model="remote", messages=messages, stream=True) as stream:
            next(iter(stream))
        deadline = time.monotonic() + 30
        while not server.disconnects and time.monotonic() < deadline:
            time.sleep(0.05)
    assert server.disconnects == 1


@pytest.mark.parametrize("command", [["ask", QUESTION], ["chat"], ["serve"], ["mcp"]])
def test_a_wrong_address_is_reported_before_the_index_is_opened(command: list[str], index_folder: Path) -> None:
    said = run(*command, "--index", index_folder, "--model", "http://127.0.0.1:9")
    assert said.exit_code == 2
    assert "http://127.0.0.1:9 cannot be reached" in said.stderr.replace("\n", " ")
    assert "Opening" not in said.stderr


def test_doctor_describes_a_server(server: FakeServer) -> None:
    said = json.loads(run("doctor", server.url, "--json").stdout)
    assert (said["name"], said["server"]) == ("qwen3:4b", f"other at {server.url}")
    assert "tokens/s" in said["speed"]


def test_the_default_model_comes_from_the_file_and_the_environment(
    index_folder: Path, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_command, "user_config_dir", lambda _: str(tmp_path / "new"))
    assert run("config", "model", server.url).exit_code == 0
    assert f"model = {server.url}" in run("config").stdout
    assert run("ask", QUESTION, "--index", index_folder, "--no-quote").stdout.startswith(ANSWER)
    monkeypatch.setenv("ANTIPHON_MODEL", "extractive")
    assert run("ask", QUESTION, "--index", index_folder).stdout.startswith("[1] ")
    monkeypatch.delenv("ANTIPHON_MODEL")
    run("config", "model", "--unset")
    assert "model" not in run("config").stdout
    assert "no setting 'modle'" in run("config", "modle").stderr
    config_command.settings_file().write_text("model = ")
    assert "is not valid TOML" in run("ask", QUESTION).stderr.replace("\n", " ")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config_command, "user_config_dir", lambda _: str(tmp_path / "file" / "new"))
    assert config_command.read_settings() == {}, "the home folder is a file"


def test_a_quoted_answer_ends_with_the_models_that_could_write_one(
    index_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggestions, "local_servers", lambda: {"ollama": ["qwen3:4b", "llama3"]})
    said = run("ask", QUESTION, "--index", index_folder)
    assert said.stderr.strip().splitlines()[-1].endswith("--model ollama/qwen3:4b or ollama/llama3")
    monkeypatch.setattr(suggestions, "local_servers", dict)
    monkeypatch.setattr(suggestions, "has_bfloat16_units", lambda: True)
    for gigabytes, expected in [(64, "Qwen/Qwen3.5-4B (11 GB"), (4, "LiquidAI/LFM2.5"), (1, "--model ADDRESS")]:
        monkeypatch.setattr(suggestions, "available_memory", lambda size=gigabytes: size * 10**9)
        assert expected in suggestions.suggested_models()
    chat = run("chat", "--index", index_folder, spoken=f"{QUESTION}\n{QUESTION}\nquit\n")
    assert chat.stderr.count("For a written answer") == 1


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("ask Why --model no.gguf", "There is no file 'no.gguf'"),
        ("ask Why --model ./no", "no model folder"),
        ("ask Why --model reader --engine no", "no engine 'no'"),
        ("ask Why --model reader --weights int8", "need nncf: pip install 'antiphon[int8]'"),
        ("ask Why --drafter no", "no drafter named 'no'"),
        ("serve --drafter no", "no drafter named 'no'"),
        ("serve --index no", "no holds no index"),
        ("mcp --drafter no", "no drafter named 'no'"),
    ],
)
def test_what_is_missing_is_reported_before_the_index_is_opened(
    command: str, sentence: str, index_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)  # as if it were not installed
    said = run(*command.split(), *(() if "--index" in command else ("--index", index_folder)))
    assert (said.exit_code, "Opening" in said.stderr) == (2, False)
    assert sentence in said.stderr.replace("\n", " ")


def test_a_gguf_file_that_cannot_be_read_names_who_can(index_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    said = run("ask", QUESTION, "--index", index_folder, "--model", broken).stderr.replace("\n", " ")
    assert "transformers cannot read model.gguf" in said
    assert "llama-server -m" in said


def embedding_pages(dim: int = 16) -> Any:
    """Return what ``/v1/embeddings`` answers: vectors that depend on the words of the texts."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        vectors = [
            [float(hashlib.sha256(f"{place}{text}".encode()).digest()[0]) for place in range(dim)]
            for text in body["input"]
        ]
        entries = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]
        return {"data": entries[::-1]}

    return answer


def test_an_embedder_on_a_server(server: FakeServer, tmp_path: Path) -> None:
    server.pages = {"/v1/embeddings": embedding_pages()}
    embedder = RemoteEmbedder(server.url)
    assert (embedder.dim, embedder.embed_queries([]).shape) == (16, (0, 16))
    documents, queries = embedder.embed_documents(["a", "b"]), embedder.embed_queries(["a"])
    assert documents.shape == (2, 16)
    assert not (documents[0] == queries[0]).all(), "this family reads a prompt before questions"
    (tmp_path / "bees.txt").write_text("Bees live in colonies.")
    address = f"{server.url}#nomic-embed-text"
    assert run("index", tmp_path / "bees.txt", "--out", tmp_path / "index", "--embedder", address).exit_code == 0
    assert Retriever.open(tmp_path / "index").search("bees")[0].text == "Bees live in colonies."
    server.pages = {"/v1/embeddings": {"error": "not an embedding model"}}
    said = run("ask", QUESTION, "--index", tmp_path / "index").stderr.replace("\n", " ")
    assert "does not embed with 'nomic-embed-text'" in said


def test_a_server_that_fails_is_named_without_its_address(retriever: Retriever, server: FakeServer) -> None:
    service = make_service(RemoteLanguageModel(server.url, retries=0), ServerSettings(), name="remote")
    body = {"model": "remote", "messages": [{"role": "user", "content": QUESTION}]}
    with TestClient(create_app(service)) as client:
        for upstream, expected in {503: 502, 429: 429, 400: 400}.items():
            server.error_codes = [upstream]
            answer = client.post("/v1/chat/completions", json=body)
            assert (answer.status_code, "127.0.0.1" in answer.text) == (expected, False)
            assert "The server of the model" in answer.json()["error"]["message"]


def test_a_stream_that_waits_begins_and_stays_alive(
    retriever: Retriever, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.1)
    server.pieces, server.pause = ("word ", "end"), 0.6
    service = make_service(RemoteLanguageModel(server.url), ServerSettings(), name="remote")
    body = {"model": "remote", "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    with TestClient(create_app(service)) as client:
        lines = [line for line in client.post("/v1/chat/completions", json=body).text.split("\n\n") if line]
        assert lines.count(": waiting") >= 4
        assert lines[-1] == "data: [DONE]"
        unknown = client.post("/v1/chat/completions", json=body | {"model": "none"})
        assert unknown.status_code == 404, "an early error keeps its status"
