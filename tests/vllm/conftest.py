"""Fixtures: one server with the plug-in for all tests, and the answers of one without. Named by ANTIPHON_VLLM."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.accel import resolve_model
from tests.vllm import exactness
from tests.vllm.fuzz import SPECULATION
from tests.vllm.server import BLOCKS, Server, serve

MAX_NEW_TOKENS = 12
EXACT_REQUESTS, EXACT_SEED = int(os.environ.get("VLLM_REQUESTS", "12")), 0


@pytest.fixture(scope="session")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server with the plug-in; both servers start at the same time, because starting mostly uses one core."""
    options = ("--speculative-config", json.dumps(SPECULATION), "--per-request-spec-decode-metrics", "detailed")
    with serve(resolve_model("smollm2"), tmp_path_factory.mktemp("drafting"), *options, *BLOCKS) as running:
        yield running
        assert not running.violations.exists(), running.violations.read_text("utf-8")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, starting: Server) -> list[dict[str, Any]]:
    """The answers of vLLM without drafts to the requests of `exactness`."""
    with serve(resolve_model("smollm2"), tmp_path_factory.mktemp("plain")) as server:
        bodies = [exactness.make_request(EXACT_SEED, number) for number in range(EXACT_REQUESTS)]
        return exactness.ask_all(server.wait_until_ready(), bodies)


@pytest.fixture(scope="session")
def drafting_server(starting: Server) -> Server:
    """The server with the plug-in, for tests that need no answers of the plain one."""
    return starting.wait_until_ready()


@pytest.fixture(scope="session")
def server(starting: Server, plain: list[dict[str, Any]]) -> Server:
    """The server with the plug-in, after the plain server has ended."""
    return starting.wait_until_ready()
