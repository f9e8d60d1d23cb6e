"""Fixtures: one server with the plug-in for all tests, and the answers of one without. Named by ANTIPHON_VLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.accel import RemoteLanguageModel, resolve_model
from tests.vllm import exactness
from tests.vllm.fuzz import SPECULATION
from tests.vllm.server import BLOCKS, Server, serve

TOPICS = ("bees", "keys", "rivers", "bread", "clocks", "maps", "stone", "letters", "winter", "glass")
PROMPTS = [
    f"List {number} about {topic}:\n" for topic in TOPICS for number in ("one", "two", "three", "four", "five", "six")
]
MAX_NEW_TOKENS = 12
EXACT_REQUESTS, EXACT_SEED = int(os.environ.get("VLLM_REQUESTS", "24")), 0


@pytest.fixture(scope="session")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server with the plug-in; both servers start at the same time, because starting mostly uses one core."""
    options = ("--speculative-config", json.dumps(SPECULATION), "--per-request-spec-decode-metrics", "detailed")
    with serve(resolve_model("smollm2"), tmp_path_factory.mktemp("drafting"), *options, *BLOCKS) as running:
        yield running
        assert not running.violations.exists(), running.violations.read_text("utf-8")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, starting: Server) -> tuple[list[str], list[dict[str, Any]]]:
    """The answers of vLLM without drafts: texts for `PROMPTS`, and answers to the requests of `exactness`."""
    with serve(resolve_model("smollm2"), tmp_path_factory.mktemp("plain")) as server:
        model = RemoteLanguageModel(server.wait_until_ready().url, timeout=900)
        texts = [each.text for each in model.generate_batch(PROMPTS, batch_size=16, max_new_tokens=MAX_NEW_TOKENS)]
        bodies = [exactness.make_request(EXACT_SEED, number) for number in range(EXACT_REQUESTS)]
        return texts, exactness.ask_all(server, bodies)


@pytest.fixture(scope="session")
def plain_texts(plain: tuple[list[str], list[dict[str, Any]]]) -> list[str]:
    """The answers of vLLM without drafts to all prompts."""
    return plain[0]


@pytest.fixture(scope="session")
def drafting_server(starting: Server) -> Server:
    """The server with the plug-in, for tests that need no answers of the plain one."""
    return starting.wait_until_ready()


@pytest.fixture(scope="session")
def server(starting: Server, plain_texts: list[str]) -> Server:
    """The server with the plug-in, after the plain server has ended."""
    return starting.wait_until_ready()
