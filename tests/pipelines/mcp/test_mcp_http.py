"""MCP over streamable HTTP: keys, hosts, sessions, progress and cancellation, with a server on a real socket."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.access_control import LOOPBACK
from antiphon.pipelines.server.http_server import make_server
from antiphon.pipelines.server.service import Service
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.load.servers import free_port
from tests.pipelines.mcp.conftest import Gate, ProgressLog, app_with_mcp
from tests.pipelines.server.conftest import tiny_service
from tests.pipelines.server.live_server import live_server
from tests.pipelines.server.test_request_limits import becomes
from tests.pipelines.server.test_shutdown import running

pytestmark = pytest.mark.slow

KEYS = ("key-one", "key-two")
HEADERS = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.fixture(scope="module")
def gate(typist: LanguageModel) -> Gate:
    return Gate(typist)


@pytest.fixture(scope="module")
def service(gate: Gate, passages: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Service:
    folder = tmp_path_factory.mktemp("http") / "index"
    index_passages(passages, folder, HashEmbedder())
    return tiny_service(gate.model, folder, api_keys=KEYS, allowed_hosts=LOOPBACK, max_output_tokens=200)


@pytest.fixture(scope="module")
def address(service: Service, gate: Gate) -> Iterator[str]:
    with live_server(app_with_mcp(service)) as address:
        yield address
        gate.permits.release(1000)


@asynccontextmanager
async def connected(address: str, key: str = KEYS[0], mode: Any = "auto") -> AsyncIterator[Client]:
    """Connect a client that sends an API key."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def headers(key: str | None = KEYS[0], **more: str) -> dict[str, str]:
    return {**HEADERS, **({} if key is None else {"Authorization": f"Bearer {key}"}), **more}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tools_and_resources_work_in_both_versions_of_the_protocol(address: str, mode: str) -> None:
    async with connected(address, mode=mode) as client:
        found = (await client.call_tool("search", {"query": "queen eggs"})).structured_content["passages"]
        passage = (await client.call_tool("read_passage", {"id": found[0]["id"]})).structured_content
        [resource] = (await client.list_resources()).resources
    assert passage["text"] == found[0]["text"]
    assert passage["document"] == resource.uri
    assert found[0]["source"] == "bees.txt"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("key", [None, "key-three"])
def test_without_a_valid_key_every_request_is_refused(address: str, method: str, key: str | None) -> None:
    response = httpx2.request(method, f"{address}/mcp", headers=headers(key))
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_other_hosts_and_origins_are_refused(address: str, header: dict[str, str]) -> None:
    response = httpx2.post(f"{address}/mcp", json=INITIALIZE, headers=headers(**header))
    assert response.status_code == 403


def test_a_session_belongs_to_the_key_that_opened_it(address: str) -> None:
    opened = httpx2.post(f"{address}/mcp", json=INITIALIZE, headers=headers())
    session = opened.headers["mcp-session-id"]
    request = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    own, other = (
        httpx2.post(f"{address}/mcp", json=request, headers=headers(key, **{"Mcp-Session-Id": session})) for key in KEYS
    )
    assert (own.status_code, other.status_code) == (200, 404)
    ended = [httpx2.delete(f"{address}/mcp", headers=headers(key, **{"Mcp-Session-Id": session})) for key in KEYS[::-1]]
    assert [each.status_code for each in ended] == [404, 200]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"jsonrpc": "2.0", "id": 1}', b'"\xff"', b"[" * 100_000])
def test_a_malformed_body_is_refused(address: str, body: bytes) -> None:
    response = httpx2.post(f"{address}/mcp", content=body, headers=headers(**{"Content-Type": "application/json"}))
    assert response.status_code == 400
    assert "Traceback" not in response.text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_cancelled_call_stops_decoding_and_reports_its_progress_until_then(
    address: str, service: Service, gate: Gate, mode: str
) -> None:
    log, before = ProgressLog(), gate.steps
    gate.permits.release()
    async with connected(address, mode=mode) as client:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                await client.call_tool("ask", {"question": "How do bees live?"}, progress_callback=log)

            tasks.start_soon(ask)
            await asyncio.wait_for(log.is_writing.wait(), 20)
            tasks.cancel_scope.cancel()
        assert await gate.stops_within_a_step(service)
    assert gate.steps - before <= 3, "only the forward pass in progress is finished, of up to 200"


def test_a_stream_that_is_open_at_the_shutdown_ends_without_an_error(
    quoting: Service, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    address, is_open = f"http://127.0.0.1:{port}/mcp", threading.Event()

    def listen() -> bytes:
        session = httpx2.post(address, json=INITIALIZE, headers=headers(None)).headers["mcp-session-id"]
        listening = headers(None, **{"Mcp-Session-Id": session})
        with httpx2.stream("GET", address, headers=listening, timeout=30) as response:
            is_open.set()
            return response.read()

    server = make_server(app_with_mcp(quoting), "127.0.0.1", port, drain_seconds=0)
    with ThreadPoolExecutor(1) as pool, running(server):
        assert becomes(lambda: server.started)
        received = pool.submit(listen)
        assert is_open.wait(30)
        server.should_exit = True
        assert received.result(30) == b""
    assert "without completing response" not in caplog.text
