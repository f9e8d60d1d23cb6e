"""Errors of vector databases never repeat a password or a token, however the address was mistyped."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.retrieval import DatabaseUnavailable, HashEmbedder
from antiphon.retrieval.vector_databases.connection import shown_address
from antiphon.retrieval.vector_databases.milvus import MilvusIndex
from antiphon.retrieval.vector_databases.postgres import PgvectorIndex
from antiphon.retrieval.vector_databases.qdrant import QdrantIndex

SECRET = "s3cr3t"
EMBEDDER = HashEmbedder(64)
ENGINES: dict[str, Callable[..., object]] = {"milvus": MilvusIndex, "postgres": PgvectorIndex, "qdrant": QdrantIndex}
MISTYPED = {
    "milvus": [
        f"http://user:{SECRET}/x@127.0.0.1:1",
        f"https://user:{SECRET}#1@127.0.0.1:1",
        f"https://user:1234#{SECRET}@127.0.0.1:1",
        f"https://user:1234/{SECRET}@127.0.0.1:1",
        f"foo://user:{SECRET}@127.0.0.1:1",
        f"user:{SECRET}@127.0.0.1:1",
        f"user:{SECRET}@127.0.0.1.db",
        f"http://user:{SECRET}@",
        f"http://user:{SECRET}@127.0.0.1:port",
    ],
    "qdrant": [
        f"http://user:{SECRET}/x@127.0.0.1:1",
        f"user:{SECRET}@127.0.0.1:1",
        f"grpc://user:{SECRET}@127.0.0.1:1",
        f"http://user:{SECRET}@127.0.0.1:port",
    ],
    "postgres": [
        f"postgresql://user:{SECRET}/x@127.0.0.1:1/db",
        f"host=127.0.0.1 port=1 password=x {SECRET}",
        f"postgres//user:{SECRET}@127.0.0.1",
        f"postgresql://user:%zz{SECRET}@127.0.0.1:1/db",
    ],
}
UNREACHABLE = {
    "milvus": [f"http://user:{SECRET}@127.0.0.1:1", f"http://127.0.0.1:1/?token={SECRET}"],
    "qdrant": [f"http://user:{SECRET}@127.0.0.1:1", f"http://127.0.0.1:1/?api_key={SECRET}"],
    "postgres": [
        f"postgresql://user:{SECRET}@127.0.0.1:1/db",
        f"postgresql://127.0.0.1:1/db?password={SECRET}",
        f"host=127.0.0.1 port=1 password={SECRET}",
    ],
}


def cases(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(engine, address) for engine, addresses in table.items() for address in addresses]


@pytest.mark.parametrize(("engine", "address"), cases(MISTYPED))
def test_a_malformed_address_is_refused_without_repeating_it(
    engine: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read; it has the form .*not repeated here") as told:
        ENGINES[engine](address, EMBEDDER, timeout=2)
    whole = "".join(traceback.format_exception(told.value))
    assert "1234" not in str(told.value)
    assert SECRET not in whole
    assert list(tmp_path.iterdir()) == [], "it was taken for no folder"


@pytest.mark.parametrize(("engine", "address"), cases(UNREACHABLE))
def test_an_unreachable_server_is_named_by_host_and_port_only(engine: str, address: str) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"at (http://)?127\.0\.0\.1:1 does not answer") as told:
        ENGINES[engine](address, EMBEDDER, timeout=2)
    assert SECRET not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://a:b@host:19530/db?x=1#y", "http://host:19530"),
        ("https://host", "https://host"),
        ("http://[::1]:6333", "http://[::1]:6333"),
        ("unix:///run/milvus.sock", "unix:///run/milvus.sock"),
    ],
)
def test_only_scheme_host_and_port_are_shown(address: str, shown: str) -> None:
    assert shown_address("Milvus", address, ("http", "https", "unix")) == shown
