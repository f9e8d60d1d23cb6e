"""Collections: keys with random rights at every endpoint receive nothing of collections without access."""

import json
import logging
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.server.access_control import AccessKeys
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection, open_retrievers
from antiphon.pipelines.server.key_file import add_key
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder, Passage, index_passages

pytestmark = pytest.mark.slow

KEYS = 8
SIZES = {"amber": 2, "birch": 3, "coral": 5, "delta": 7}
"""The collections by name, and how many documents each has."""

VOLATILE = re.compile(r"(chatcmpl-|cmpl-|resp_|msg_|rs_)[0-9a-f]{32}")
"""Ids that differ between two equal requests."""

QUESTION = "Where is the vault?"


def documents_of(name: str) -> list[Passage]:
    """Return passages with a word that no other collection has."""
    texts = (f"The vault of {name} number {number} opens with zq{name}." for number in range(SIZES[name]))
    return [Passage.at(f"{name}-file-{number}.txt", 0, text, {"n": number}) for number, text in enumerate(texts)]


def names_in(text: str) -> set[str]:
    """Return the collections that a text has words or file names of."""
    return {name for name in SIZES if f"zq{name}" in text or f"{name}-file" in text}


def without_times(value: Any) -> Any:
    """Return a value of JSON without times, durations and ids of responses."""
    if isinstance(value, dict):
        volatile = ("created", "created_at", "completed_at", "metrics")
        return {name: without_times(each) for name, each in value.items() if name not in volatile}
    if isinstance(value, list):
        return [without_times(each) for each in value]
    return VOLATILE.sub("", value) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collections")
    for name in SIZES:
        index_passages(documents_of(name), folder / name, HashEmbedder())
    return folder


@pytest.fixture(scope="module")
def collections(folder: Path, typist: LanguageModel) -> dict[str, Collection]:
    opened = open_retrievers({name: folder / name for name in SIZES})
    return {name: Collection(name, Rag(each, typist, k=1), folder / f"{name}-up") for name, each in opened.items()}


@contextmanager
def served(model: LanguageModel, chosen: list[Collection], keys: AccessKeys, **limits: Any) -> Iterator[TestClient]:
    """Serve collections to keys."""
    settings = ServerSettings(**{"max_output_tokens": 4, "max_tenants": 500, **limits})
    service = make_service(model, settings, name="tiny", collections=chosen, keys=keys, embedder=HashEmbedder())
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield client


def requests_of(passages: dict[str, str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield requests to every endpoint, for each collection and for none."""
    for path in ("/v1/models", "/collections", "/documents", "/nowhere"):
        yield "GET", path, {}
    chat = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1, "plain": True}
    yield "POST", "/v1/chat/completions", {"json": {"model": "tiny", **chat}}
    yield "POST", "/v1/completions", {"json": {"model": "tiny", "prompt": "The vault", "max_tokens": 1}}
    yield "POST", "/v1/chat/completions", {"json": {"model": "none", **chat}}
    yield "POST", "/v1/embeddings", {"json": {"input": "vault"}}
    yield "POST", "/v1/rerank", {"json": {"query": "vault", "documents": ["The sea.", "The vault opens."]}}
    for name in (*SIZES, "elder"):
        own, identifier = {"params": {"collection": name}}, passages.get(name, "none")
        yield "GET", "/documents", own
        yield "GET", "/documents/questions", own
        yield "GET", "/documents/passages", {"params": {"collection": name, "id": "uploaded/none.txt"}}
        yield "GET", f"/passages/{identifier}", {}
        yield "GET", f"/passages/{identifier}/context", own
        yield "POST", "/documents", {**own, "files": {"file": ("a.exe", b"x")}}
        yield "POST", "/v1/chat/completions", {"json": {"model": f"tiny+{name}", **chat, "stream": True}}
        if name in ("amber", "elder"):
            yield "GET", f"/v1/models/tiny+{name}", {}
            yield "GET", f"/passages/{identifier}", own
            yield "GET", f"/passages/{identifier}/pages", own
            yield "GET", f"/passages/{identifier}/page.png", {"params": {"collection": name, "page": 1}}
            yield "DELETE", "/documents", {"params": {"collection": name, "id": "uploaded/none.txt"}}
            body = {"model": "tiny", "collection": name, "where": {"n": 0}, "max_output_tokens": 1}
            yield "POST", "/v1/responses", {"json": {"input": QUESTION, **body}}
            yield "POST", "/v1/completions", {"json": {"model": "tiny", "collection": name, "prompt": "x"}}


def response_of(client: TestClient, key: str, method: str, path: str, sent: dict[str, Any]) -> tuple[int, str, Any]:
    """Return status, body and headers of a response, without what differs between two equal requests."""
    response = client.request(method, path, headers={"Authorization": f"Bearer {key}"}, **sent)
    headers = {name: each for name, each in response.headers.items() if name not in ("x-request-id", "content-length")}
    lines = [line.partition("data: ")[2] if line.startswith("data: ") else line for line in response.text.splitlines()]
    bodies = [without_times(json.loads(line)) if line.startswith("{") else line for line in lines]
    return response.status_code, json.dumps(bodies), headers


@pytest.fixture(scope="module")
def key_file(folder: Path) -> Path:
    path = folder / "collections.toml"
    path.write_text("\n".join(f'[collections.{name}]\nindex = "{name}"' for name in SIZES))
    return path


def test_keys_receive_what_a_server_with_only_their_collections_would_send(
    collections: dict[str, Collection], key_file: Path, typist: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(50)
    rights = [{name: chance.choice(("", "", "read", "write")) for name in SIZES} for _ in range(KEYS)]
    keys = [
        add_key(key_file, f"key-{number}", read=_with(each, "read"), write=_with(each, "write"))
        for number, each in enumerate(rights)
    ]
    passages = {name: documents_of(name)[0].id for name in SIZES}
    calls = list(requests_of(passages))
    caplog.set_level(logging.DEBUG, "antiphon")
    with served(typist, list(collections.values()), AccessKeys(file=key_file)) as client:
        received = [[response_of(client, key, *call) for call in calls] for key in keys]
        metrics = client.get("/metrics", headers={"Authorization": f"Bearer {keys[0]}"}).text
    written = f"{caplog.text}{metrics}"
    assert len(caplog.records) >= KEYS * len(calls)
    assert not [key for key in keys if key.removeprefix("antiphon-") in written]
    assert not [name for name in SIZES if name in written], "neither names nor words of collections"
    for key, own, responses in zip(keys, rights, received, strict=True):
        allowed = [collections[name] for name in SIZES if own[name]]
        with served(typist, allowed, AccessKeys(file=key_file)) as alone:
            expected = [response_of(alone, key, *call) for call in calls]
        bodies = "".join(f"{body}{headers}" for _, body, headers in expected)
        assert names_in(bodies) == {each.name for each in allowed}, "each collection with access is answered from"
        for call, got, wanted in zip(calls, responses, expected, strict=True):
            assert got == wanted, call


def _with(rights: dict[str, str], right: str) -> list[str]:
    return [name for name, own in rights.items() if own == right]
