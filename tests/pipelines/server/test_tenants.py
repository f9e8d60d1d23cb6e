"""Isolation of tenants: twenty clients at every endpoint, each with a key and a secret that no other may receive."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.tenants import Tenant, Tenants
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.integrations.request_recorder import RequestRecorder
from tests.pipelines.server.conftest import tiny_service

TENANTS = 20
SECRET = re.compile(r"secret-(\d{3})")


def secret(number: int) -> str:
    """Return a text that only this tenant may receive."""
    return f"The vault of secret-{number:03d} opens at noon."


def tenants_in(response: Any) -> set[int]:
    """Return the numbers of the tenants whose secrets occur in a response."""
    return {int(each) for each in SECRET.findall(response if isinstance(response, str) else json.dumps(response))}


@pytest.fixture
def log(typist: LanguageModel) -> RequestRecorder:
    """The prompt and the references of every request in the scheduler."""
    return RequestRecorder(typist.tokenizer)


@pytest.fixture
def client(
    log: RequestRecorder, typist: LanguageModel, passages: list[Passage], tmp_path: Path
) -> Iterator[TestClient]:
    model = LanguageModel(typist.model, typist.tokenizer, name="recording", drafter=log.drafter)
    index_passages(passages, tmp_path / "index", HashEmbedder())
    keys = tuple(f"key-{number}" for number in range(TENANTS))
    service = tiny_service(model, tmp_path / "index", api_keys=keys, max_waiting=64, max_tenants=TENANTS, max_running=8)
    with TestClient(create_app(service)) as client:
        yield client


class TenantClient:
    """One tenant: its key, its secret, and all responses that it received."""

    def __init__(self, client: TestClient, number: int) -> None:
        self.client, self.number = client, number
        self.headers = {"Authorization": f"Bearer key-{number}"}
        self.responses: list[Any] = []
        self.question = f"Where is secret-{number:03d}?"
        self.references = [{"text": secret(number), "id": f"of secret-{number:03d}", "title": f"secret-{number:03d}"}]

    def post(self, path: str, **body: Any) -> Any:
        response = self.client.post(path, json={"model": "tiny", **body}, headers=self.headers)
        assert response.status_code == 200, response.text
        is_json = response.headers["content-type"].startswith("application/json")
        self.responses.append(response.json() if is_json else response.text)
        return self.responses[-1]

    def call_every_endpoint(self) -> None:
        """Send a request to every endpoint."""
        options: Any = {"references": self.references, "max_tokens": 6}
        turns = [{"role": "user", "content": self.question}]
        first = self.post("/v1/chat/completions", messages=turns, **options)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "a prefix of another tenant"
        predicted = {"type": "content", "content": secret(self.number)}
        self.post("/v1/chat/completions", messages=turns, stream=True, prediction=predicted, **options)
        self.post("/v1/chat/completions", **options | {"model": "tiny+docs"}, messages=turns)
        self.post("/v1/completions", prompt=self.question, **options)
        self.post("/v1/responses", input=self.question, references=self.references, max_output_tokens=16)
        own = HashEmbedder().embed_documents([secret(self.number)])[0].tolist()
        assert self.post("/v1/embeddings", input=secret(self.number))["data"][0]["embedding"] == pytest.approx(own)
        self.post("/v1/rerank", query=self.question, documents=[secret(self.number), "Bees."])
        found = self.client.get(f"/passages/of secret-{(self.number + 1) % TENANTS:03d}", headers=self.headers)
        assert found.status_code == 404, "a reference is not a passage of the index"


@pytest.mark.slow
def test_twenty_tenants_at_every_endpoint_receive_nothing_of_each_other(
    client: TestClient, log: RequestRecorder
) -> None:
    clients = [TenantClient(client, number) for number in range(TENANTS)]
    with ThreadPoolExecutor(TENANTS) as pool:
        list(pool.map(TenantClient.call_every_endpoint, clients))
    for each in clients:
        assert tenants_in(each.responses) <= {each.number}
    assert len(log.requests) == 5 * TENANTS
    for prompt, references in log.requests:
        assert len(tenants_in(prompt)) == 1
        assert tenants_in(" ".join(references)) == tenants_in(prompt), (
            "in the scheduler, too, a request has its own tenant's references only"
        )


@pytest.mark.slow
def test_the_kv_cache_of_a_prompt_is_reused_for_the_same_key_and_user_only(client: TestClient) -> None:
    def cached(number: int, user: str) -> int:
        turns = [{"role": "user", "content": "How do bees live?"}]
        answer = TenantClient(client, number).post("/v1/chat/completions", messages=turns, max_tokens=2, user=user)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    first, others = cached(0, "ana"), (cached(0, "bob"), cached(1, "ana"))
    assert (first, others) == (0, (0, 0))
    assert cached(0, "ana") > 10


@pytest.mark.slow
def test_an_engines_own_prefix_cache_is_separate_for_each_tenant() -> None:
    tenants: Any = [Tenant(name, RecyclingTable("typist", entries=8)) for name in ("one", "other")]
    one, other = tenants
    first = one.take([1, 2, 3])
    one.keep([1, 2, 3], first)
    assert one.take([7, 8]).tenant is first.tenant
    assert other.take([1, 2, 3]).tenant is not first.tenant
    assert PrefixCache().tenant is not PrefixCache().tenant


def tenants_of(max_tenants: int = 10, prefix_cache_tokens: int = 10) -> Tenants:
    return Tenants(RecyclingTable, max_tenants=max_tenants, prefix_cache_tokens=prefix_cache_tokens)


def cache_of(size: int) -> Any:
    return SimpleNamespace(size=size)


def test_a_tenant_is_one_key_user_and_collection() -> None:
    tenants = tenants_of()
    asked = [
        ("key", None, None),
        ("key", "user", None),
        ("key", None, "docs"),
        ("key", None, "more"),
        ("", "key", None),
    ]
    found = [tenants.of(*each) for each in asked]
    assert [tenants.of(*each) for each in asked] == found
    assert len({id(tenant) for tenant in found}) == len({id(tenant.table) for tenant in found}) == len(asked)
    assert found[0].name == found[2].name != found[1].name, "requests of a key take turns whatever they ask"


def test_the_least_recent_tenant_is_dropped() -> None:
    tenants = tenants_of(max_tenants=2)
    first, second = tenants.of("first", None), tenants.of("second", None)
    assert tenants.of("first", None) is first
    tenants.of("third", None)
    assert tenants.of("first", None) is first
    assert tenants.of("second", None) is not second


def test_prefix_caches_of_all_tenants_together_stay_within_the_limit() -> None:
    tenants = tenants_of(prefix_cache_tokens=10)
    one, other = tenants.of("one", None), tenants.of("other", None)
    tenants.keep(one, [1, 2], cache_of(6))
    tenants.keep(other, [1, 3], cache_of(4))
    assert tenants.cached_tokens == 10
    newest = cache_of(5)
    tenants.keep(other, [1, 4], newest)
    assert tenants.cached_tokens == 9
    assert one.cached_tokens == 0
    assert other.take([1, 4, 7]) is newest, "the longest common prefix"
    new: Any = other.take([9])
    assert new.size == 0
