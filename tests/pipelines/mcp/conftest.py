"""Fixtures of the MCP tests: a service that quotes three passages, and clients of it in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from antiphon.pipelines import Rag
from antiphon.pipelines.extractive_model import EXTRACTIVE, ExtractiveModel
from antiphon.pipelines.mcp.server import make_mcp_server
from antiphon.pipelines.mcp.service_source import ServiceSource
from antiphon.pipelines.server.service import Service, make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages

Connect = Callable[..., AbstractAsyncContextManager[Client]]
"""Connects a client to a service, by default the one that quotes."""


@pytest.fixture(scope="module")
def quoting(passages: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without a language model; the passages have years and lines."""
    folder = tmp_path_factory.mktemp("quoting") / "index"
    dated = [
        Passage.at(f"/home/someone/{each.source}", each.start, each.text, {"year": 2020 + number, "lines": str(number)})
        for number, each in enumerate(passages, start=1)
    ]
    index_passages(dated, folder, HashEmbedder())
    service = make_service(ExtractiveModel(), ServerSettings(), name=EXTRACTIVE, rag=Rag(Retriever.open(folder), k=3))
    yield service
    service.queue.close()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Connect:
    @asynccontextmanager
    async def connecting(service: Service | None = None, *, is_local: bool = True) -> AsyncIterator[Client]:
        chosen: Any = service or request.getfixturevalue("quoting")
        server = make_mcp_server(ServiceSource(lambda: chosen), is_local=is_local)
        async with Client(server, mode="legacy") as client:
            yield client

    return connecting


def text_of(result: Any) -> str:
    """Return the text of a tool's result, which has one block."""
    [block] = result.content
    return str(block.text)


def index_of_documents(folder: Path, documents: dict[str, str], **metadata: Any) -> Path:
    """Write an index of documents that are one passage each, and return its folder.

    Args:
        folder: the folder of the index.
        documents: the texts by source.
        **metadata: metadata of all passages.
    """
    passages = [Passage.at(source, 0, text, metadata) for source, text in documents.items()]
    index_passages(passages, folder, HashEmbedder())
    return folder
