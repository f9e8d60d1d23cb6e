"""Progress and cancellation of tool calls, and a service that is still loading."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from antiphon.accel import LanguageModel
from antiphon.pipelines.mcp import server as mcp_server
from antiphon.pipelines.mcp.server import LOADING, make_mcp_server
from antiphon.pipelines.server.service import Service
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.pipelines.mcp.conftest import Connect, Gate, ProgressLog, text_of
from tests.pipelines.server.conftest import tiny_service

QUESTION = "How do bees live?"


@pytest.fixture
def gate(typist: LanguageModel) -> Gate:
    return Gate(typist)


@pytest.fixture
def service(gate: Gate, passages: list[Passage], tmp_path: Path) -> Iterator[Service]:
    index_passages(passages, tmp_path / "index", HashEmbedder())
    service = tiny_service(gate.model, tmp_path / "index", max_running=1, max_output_tokens=200)
    yield service
    gate.permits.release(1000)
    service.queue.close()


async def test_an_answer_reports_its_stages_and_its_tokens(connect: Connect, service: Service, gate: Gate) -> None:
    gate.permits.release(1000)
    log = ProgressLog()
    async with connect(service) as client:
        result = await client.call_tool("ask", {"question": QUESTION}, progress_callback=log)
    assert result.structured_content["produced_by"].startswith("written by gated; ")
    stages = [each for each in log.messages if "written" not in each]
    assert stages[-2:] == ["Searching", "2 passages found; writing the answer"]
    assert log.messages[-1].endswith(" tokens written")
    assert all(one < other for one, other in zip(log.values, log.values[1:], strict=False))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_cancelled_call_stops_decoding_after_the_current_forward_pass(
    service: Service, gate: Gate, mode: Any
) -> None:
    log = ProgressLog()
    gate.permits.release()
    server = make_mcp_server(lambda: service, is_local=True)
    async with Client(server, mode=mode) as client:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                await client.call_tool("ask", {"question": QUESTION}, progress_callback=log)

            tasks.start_soon(ask)
            await asyncio.wait_for(log.is_writing.wait(), 20)
            tasks.cancel_scope.cancel()
        assert len((await client.list_tools()).tools) == 3, "the connection is still usable"
        assert await gate.stops_within_a_step(service)
    assert gate.steps <= 3, "only the forward pass in progress is finished, of up to 200"
    cancelled = service.metrics.registry.get_sample_value("antiphon_generations_total", {"finish": "cancelled"})
    assert cancelled == 1


async def test_tools_wait_for_the_service_and_report_that_it_is_loading(
    quoting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "LOADING_SECONDS", 0.01)
    is_allowed, log = threading.Event(), ProgressLog()

    def load() -> Service:
        assert is_allowed.wait(20)
        return quoting

    async def report(progress: float, total: float | None, message: str | None) -> None:
        await log(progress, total, message)
        if len(log.messages) == 3:
            is_allowed.set()

    async with Client(make_mcp_server(load, is_local=True), mode="legacy") as client:
        assert len((await client.list_tools()).tools) == 3, "the list needs no service"
        result = await client.call_tool("search", {"query": "bees"}, progress_callback=report)
    assert not result.is_error
    assert log.messages[:3] == [LOADING] * 3


async def test_a_service_that_cannot_be_loaded_is_an_error_of_each_call(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Service:
        raise FileNotFoundError("The index is gone.")

    async with Client(make_mcp_server(load, is_local=True), mode="legacy") as client:
        results: Sequence[str] = [text_of(await client.call_tool("search", {"query": "bees"})) for _ in range(2)]
    reason = "Error executing tool search: The documents or the model cannot be loaded: The index is gone."
    assert results == [reason] * 2
    assert "The index is gone." in caplog.text
