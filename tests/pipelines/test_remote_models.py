"""A model on a server behind Rag, Chat and the command line: answers with citations, and errors in a sentence."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.accel import RemoteLanguageModel
from antiphon.accel.remote.errors import BrokenStreamError
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.sessions import SessionStore
from antiphon.retrieval import HashEmbedder, Retriever
from tests.accel.fake_server import FakeServer, run_server

pytestmark = pytest.mark.slow

QUESTION = "How do bees live?"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with run_server(FakeServer(owner="antiphon", window=4000)) as running:
        yield running


def ask(index: Path, model: str, *more: str) -> Result:
    return CliRunner().invoke(app, ["ask", QUESTION, "--no-quote", "--index", str(index), "--model", model, *more])


def test_passages_that_do_not_fit_the_servers_window_are_left_out(retriever: Retriever) -> None:
    with run_server(FakeServer(window=210)) as server:
        answer = Rag(retriever, RemoteLanguageModel(server.url), k=3).ask(QUESTION, max_new_tokens=20)
    assert 0 < len(answer.passages) < 3


def test_an_answer_that_breaks_off_is_neither_kept_nor_lost(
    retriever: Retriever, server: FakeServer, tmp_path: Path
) -> None:
    server.breaks_after = 3
    store = SessionStore(tmp_path / "sessions.sqlite", embedder=HashEmbedder())
    stream = Rag(retriever, RemoteLanguageModel(server.url, retries=0), k=1, sessions=store).stream(QUESTION)
    with pytest.raises(BrokenStreamError) as caught:
        list(stream)
    assert caught.value.completion.text == "Bees live in "
    assert len(store) == 0


@pytest.mark.parametrize(
    ("change", "model", "sentence"),
    [
        ({}, "#huge", "has no model 'huge'; it has 'tiny'."),
        ({"breaks_after": 3}, "", "The answer broke off after 13 characters"),
        ({"window": 10}, "", "exceeds the context window"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    index_folder: Path, server: FakeServer, change: dict[str, object], model: str, sentence: str
) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    said = ask(index_folder, server.url + model)
    assert said.exit_code == 2
    assert sentence in said.stderr.replace("\n", " ")
    assert "Traceback" not in said.stderr
    if "breaks_after" in change:
        assert said.stdout.startswith("Bees live in"), "what was received is there"


def test_a_server_that_is_not_there_and_options_that_are_not_for_one(index_folder: Path, server: FakeServer) -> None:
    assert "cannot be reached" in ask(index_folder, "http://127.0.0.1:9/v1").stderr
    assert "for models that run here" in ask(index_folder, server.url, "--plain").stderr
