"""Fixtures of the server's tests: a service of a tiny model with an index, and a client in the same process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.server import streaming
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.service import Service, make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.pipelines.server.page_fixtures import address, browser, page

__all__ = ["address", "browser", "page"]

Serve = Callable[..., Any]
"""Makes a context that serves the tiny model with the given settings and yields a client."""


def tiny_service(language_model: LanguageModel, folder: Path, *, k: int = 2, **settings: Any) -> Service:
    """Return a service of the tiny model."""
    limits = ServerSettings(**{"max_running": 4, "max_waiting": 4, "max_output_tokens": 64, **settings})
    retriever, uploads = Retriever.open(folder), None if limits.read_only else folder.with_name("uploads")
    return make_service(
        language_model,
        limits,
        name="tiny",
        embedder=retriever.embedder,
        reranker=retriever.reranker,
        collections=[Collection("docs", Rag(retriever, language_model, k=k), uploads)],
    )


@pytest.fixture(autouse=True)
def patient_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, too, an error before the first token is an error response and not an event of a stream."""
    monkeypatch.setattr(streaming, "FIRST_SECONDS", 60.0)


@pytest.fixture(scope="module")
def serve(typist: LanguageModel, passages: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Serve:
    @contextmanager
    def serving(**settings: Any) -> Iterator[TestClient]:
        folder = tmp_path_factory.mktemp("served") / "index"
        index_passages(passages, folder, HashEmbedder())
        with TestClient(create_app(tiny_service(typist, folder, **settings))) as client:
            yield client

    return serving


@pytest.fixture(scope="module")
def client(serve: Serve) -> Iterator[TestClient]:
    with serve() as client:
        yield client
