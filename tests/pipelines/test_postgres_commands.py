"""Commands with an index in PostgreSQL, and that none repeats its password."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.pipelines.cli import app
from tests.retrieval.servers import postgres, table_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECRET = "s3cr3t"
QUESTION, ANSWER = "How many eggs does a queen lay?", "A queen lays as many as two thousand eggs on a summer's day."
SECOND, ADDED = "What do ants farm for honeydew?", "Ants farm aphids for honeydew, which they drink."


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a table with a password, which this server does not ask for and no output may repeat."""
    with postgres() as server:
        yield table_address(server, "docs").replace("postgres:@", f"postgres:{SECRET}@")


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


def test_documents_are_indexed_listed_described_asked_and_removed(url: str) -> None:
    shown = one_line(run("index", "bees", "--out", url, "--embedder", "minilm").stderr)
    assert "1 file, 1 passage, embedder minilm" in shown
    assert "postgresql:///postgres?host=" in shown
    assert "1 passage (1 of them embedded before)" in one_line(run("index", "bees", "--out", url).stderr)
    assert "1 passage of other documents kept" in one_line(run("index", "ants", "--out", url, "--add").stderr)
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
    assert "1 document removed: postgresql:///postgres" in one_line(
        run("index", "bees", "--out", url, "--remove").stderr
    )
    assert run("index", "--list", url).stdout.splitlines() == ["      1  ants/farms.txt"]
