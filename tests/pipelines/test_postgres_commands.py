"""Commands with an index in PostgreSQL: two servers share it, and each says what is wrong if the database is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from antiphon.pipelines.cli import app
from antiphon.pipelines.server.errors import NO_DATABASE
from tests.load.servers import Command, RunningServer, serving
from tests.retrieval.servers import postgres, table_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECRET = "s3cr3t"
QUESTION, ANSWER = "How many eggs does a queen lay?", "A queen lays as many as two thousand eggs on a summer's day."
SECOND, ADDED = "What do ants farm for honeydew?", "Ants farm aphids for honeydew, which they drink."


@pytest.fixture
def server() -> Iterator[Any]:
    with postgres() as started:
        yield started


@pytest.fixture
def url(server: Any) -> str:
    """The address of a table with a password, which this server does not ask for and no output may repeat."""
    return table_address(server, "docs").replace("postgres:@", f"postgres:{SECRET}@")


@pytest.fixture(autouse=True)
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"bees/eggs.md": f"---\nlang: en\n---\n{ANSWER}\n", "ants/farms.txt": ADDED}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0, said: str | None = None) -> Result:
    done = CliRunner().invoke(app, arguments, input=said)
    assert done.exit_code == code, done.stderr
    assert SECRET not in done.output
    return done


def one_line(text: str) -> str:
    return " ".join(text.split())


def ask(server: RunningServer, question: str) -> httpx.Response:
    body = {"model": "extractive+docs", "messages": [{"role": "user", "content": question}]}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)


def answer(server: RunningServer, question: str) -> str:
    response = ask(server, question)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def test_documents_are_indexed_listed_described_asked_and_removed(url: str) -> None:
    shown = one_line(run("index", "bees", "--out", url, "--embedder", "minilm").stderr)
    assert "1 files, 1 passages, embedder minilm" in shown
    assert "postgresql:///postgres?host=" in shown
    assert "1 passages (1 of them embedded before)" in one_line(run("index", "bees", "--out", url).stderr)
    assert "1 passages of other documents kept" in one_line(run("index", "ants", "--out", url, "--add").stderr)
    assert run("index", "--list", url).stdout.splitlines() == ["      1  ants/farms.txt", "      1  bees/eggs.md"]
    described = run("index", "--describe", url).stdout
    assert "2 vectors of 384 numbers" in described
    assert "HNSW" in described
    found = json.loads(run("ask", QUESTION, "--index", url, "--json").stdout)
    assert "two thousand eggs" in found["text"]
    assert found["citations"][0]["source"] == "bees/eggs.md"
    filtered = json.loads(run("ask", SECOND, "--index", url, "--where", "lang=en", "--json").stdout)
    assert [passage["source"] for passage in filtered["passages"]] == ["bees/eggs.md"]
    assert "aphids" in run("chat", "--index", url, said=f"{SECOND}\nexit\n").stdout
    refused = run("index", "bees", "--out", url, "--embedder", "hash", code=2).stderr
    assert "was made with the embedder minilm" in one_line(refused)
    assert "would drop 1 of the 2 documents" in one_line(run("index", "ants", "--out", url, code=2).stderr)
    assert "1 documents removed: postgresql:///postgres" in one_line(
        run("index", "bees", "--out", url, "--remove").stderr
    )
    assert run("index", "--list", url).stdout.splitlines() == ["      1  ants/farms.txt"]


@pytest.mark.exhaustive
def test_two_servers_answer_from_one_table_and_see_additions(url: str, server: Any, tmp_path: Path) -> None:
    run("index", "bees", "--out", url, "--embedder", "minilm")
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(Command.antiphon("extractive", ("--index", url)), log)) for log in logs]
        for each in servers:
            assert "two thousand eggs" in answer(each, QUESTION)
            assert "aphids" not in answer(each, SECOND)
        run("index", "ants", "--out", url, "--add")
        for each in servers:
            assert "aphids" in answer(each, SECOND)
            listed = httpx.get(f"{each.url}/documents").json()
            assert [document["name"] for document in listed["data"]] == ["farms.txt", "eggs.md"]
            assert listed["read_only"]
        passage = ask(servers[0], SECOND).json()["choices"][0]["message"]["annotations"][0]["url_citation"][
            "passage_id"
        ]
        for each in servers:
            shown = httpx.get(f"{each.url}/passages/{passage}/context").json()
            assert shown["passages"][0]["text"] == ADDED
        server.stop()
        for each in servers:
            for response in (ask(each, QUESTION), httpx.get(f"{each.url}/documents")):
                assert (response.status_code, response.json()["error"]["message"]) == (503, NO_DATABASE)
        server.start()
        for each in servers:
            assert "two thousand eggs" in answer(each, QUESTION)
    for log in logs:
        text = log.read_text()
        assert SECRET not in text
        assert "Uploads are disabled: add documents to PostgreSQL" in text
