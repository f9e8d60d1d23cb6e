"""Progress and cancellation of tool calls, and a service that is still loading."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

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
