"""Fixtures of the MCP tests: a service that quotes three passages, and clients of it in the same process."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from mcp import Client

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.drafters import Blend
from antiphon.pipelines import Rag
from antiphon.pipelines.extractive_model import EXTRACTIVE, ExtractiveModel
from antiphon.pipelines.mcp.http import add_mcp
from antiphon.pipelines.mcp.server import make_mcp_server
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection
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
    docs = [Collection("docs", Rag(Retriever.open(folder), k=3))]
    service = make_service(ExtractiveModel(), ServerSettings(), name=EXTRACTIVE, collections=docs)
    yield service
    service.queue.close()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Connect:
    @asynccontextmanager
    async def connecting(service: Service | None = None, *, is_local: bool = True) -> AsyncIterator[Client]:
        chosen: Any = service or request.getfixturevalue("quoting")
        server = make_mcp_server(lambda: chosen, is_local=is_local)
        async with Client(server, mode="legacy") as client:
            yield client

    return connecting


def app_with_mcp(service: Service) -> FastAPI:
    """Return the application of a service, with the endpoint of MCP."""
    app = create_app(service)
    add_mcp(app, service)
    return app


class Gate:
    """Lets a model run one forward pass for each permit, and counts them."""

    def __init__(self, model: LanguageModel) -> None:
        gate = self

        class GatedBlend(Blend):
            def propose(self, context: Tokens, budget: int) -> Draft:
                assert gate.permits.acquire(timeout=20)
                gate.steps += 1
                return super().propose(context, budget)

        self.permits, self.steps = threading.Semaphore(0), 0
        self.model = LanguageModel(model.model, model.tokenizer, name="gated", drafter=GatedBlend)

    async def stops_within_a_step(self, service: Service) -> bool:
        """Allow all further forward passes, and return whether the generation of a cancelled request ends."""
        jobs = service.queue._running
        await becomes(lambda: all(job.is_cancelled for job in jobs))
        self.permits.release(1000)
        await becomes(lambda: not jobs)
        while self.permits.acquire(blocking=False):
            pass
        return service.queue.running == 0


async def becomes(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, at most ten seconds."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)


class ProgressLog:
    """Records progress, and sets an event when an answer is being written."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.messages: list[str] = []
        self.is_writing = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.values.append(progress)
        self.messages.append(message or "")
        if "tokens written" in self.messages[-1]:
            self.is_writing.set()


def text_of(result: Any) -> str:
    """Return the text of a tool's result, which has one block."""
    [block] = result.content
    return str(block.text)


def index_of_documents(folder: Path, documents: dict[str, str], **metadata: Any) -> Path:
    """Write an index of documents that are one passage each, and return its folder."""
    passages = [Passage.at(source, 0, text, metadata) for source, text in documents.items()]
    index_passages(passages, folder, HashEmbedder())
    return folder
