"""Forty who ask at once at every address, each with a key and a secret: nobody hears of another, nor does a drafter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.drafters import Blend, RecyclingTable
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.tenants import ServerTenant
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.pipelines.server.conftest import tiny_service

TENANTS = 40
SECRET = re.compile(r"secret-(\d{3})")


def secret(number: int) -> str:
    """What nobody but this tenant may read."""
    return f"The vault of secret-{number:03d} opens at noon."


def numbers(told: Any) -> set[int]:
    """Whose secrets stand in there."""
    return {int(each) for each in SECRET.findall(told if isinstance(told, str) else json.dumps(told))}


@dataclass(slots=True)
class Witness:
    """Notes of every text in the loop whose secrets its prompt has, and whose its references have."""

    model: LanguageModel
    seen: list[tuple[set[int], set[int]]] = field(default_factory=list)

    def drafter(self) -> Blend:
        """A drafter that drafts as ever, and tells the witness."""
        witness = self

        class Watched(Blend):
            def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
                decode = witness.model.tokenizer.decode
                known = [numbers(decode(list(each))) for each in references]
                witness.seen.append((numbers(decode(list(prompt))), set().union(*known)))
                return super().begin(prompt, references)

        return Watched()


@pytest.fixture
def witness(typist: LanguageModel) -> Witness:
    witness = Witness(typist)
    witness.model = LanguageModel(typist.model, typist.tokenizer, name="watched", drafter=witness.drafter)
    return witness


@pytest.fixture
def client(witness: Witness, passages: list[Passage], tmp_path: Path) -> Iterator[TestClient]:
    index_passages(passages, tmp_path / "index", HashEmbedder())
    keys = tuple(f"key-{number}" for number in range(TENANTS))
    service = tiny_service(witness.model, tmp_path / "index", keys=keys, queue=64, tenants=TENANTS, parallel=8)
    with TestClient(create_app(service)) as client:
        yield client


class Asker:
    """One tenant: its key, its secret, and all that it was told."""

    def __init__(self, client: TestClient, number: int) -> None:
        self.client, self.number = client, number
        self.headers = {"Authorization": f"Bearer key-{number}"}
        self.told: list[Any] = []
        self.question = f"Where is secret-{number:03d}?"
        self.references = [{"text": secret(number), "id": f"of secret-{number:03d}", "title": f"secret-{number:03d}"}]

    def post(self, path: str, **body: Any) -> Any:
        response = self.client.post(path, json={"model": "tiny", **body}, headers=self.headers)
        assert response.status_code == 200, response.text
        is_json = response.headers["content-type"].startswith("application/json")
        self.told.append(response.json() if is_json else response.text)
        return self.told[-1]

    def ask_everywhere(self) -> None:
        """Ask at every address, beside the others."""
        how: Any = {"references": self.references, "max_tokens": 6}
        turns = [{"role": "user", "content": self.question}]
        first = self.post("/v1/chat/completions", messages=turns, **how)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "a prefix of another tenant"
        predicted = {"type": "content", "content": secret(self.number)}
        self.post("/v1/chat/completions", messages=turns, stream=True, prediction=predicted, **how)
        self.post("/v1/chat/completions", **how | {"model": "tiny+docs"}, messages=turns)
        self.post("/v1/completions", prompt=self.question, **how)
        self.post("/v1/responses", input=self.question, references=self.references, max_output_tokens=16)
        own = HashEmbedder().embed_documents([secret(self.number)])[0].tolist()
        assert self.post("/v1/embeddings", input=secret(self.number))["data"][0]["embedding"] == pytest.approx(own)
        self.post("/v1/rerank", query=self.question, documents=[secret(self.number), "Bees."])
        found = self.client.get(f"/passages/of secret-{(self.number + 1) % TENANTS:03d}", headers=self.headers)
        assert found.status_code == 404, "a reference is no passage of the index"

    def upload(self) -> None:
        """Put the secret into the index, which is everybody's."""
        file = (f"secret-{self.number:03d}.txt", secret(self.number).encode())
        response = self.client.post("/documents", files={"file": file}, headers=self.headers)
        assert response.status_code == 200, response.text
        assert numbers(response.text) == {self.number}


def test_forty_tenants_at_every_address_hear_nothing_of_each_other(client: TestClient, witness: Witness) -> None:
    askers = [Asker(client, number) for number in range(TENANTS)]
    with ThreadPoolExecutor(TENANTS) as pool:
        list(pool.map(Asker.ask_everywhere, askers))
    for asker in askers:
        assert numbers(asker.told) <= {asker.number}
    assert len(witness.seen) == 5 * TENANTS
    for prompt, references in witness.seen:
        assert len(prompt) == 1
        assert references == prompt, "in the loop as well, a text has its own tenant's references and no others"


def test_forty_uploads_at_once_are_each_whole(client: TestClient) -> None:
    askers = [Asker(client, number) for number in range(TENANTS)]
    with ThreadPoolExecutor(TENANTS) as pool:
        list(pool.map(Asker.upload, askers))
    listed = client.get("/documents", headers=askers[0].headers).json()["data"]
    uploaded = [each for each in listed if each["uploaded"]]
    assert sorted(each["name"] for each in uploaded) == [f"secret-{number:03d}.txt" for number in range(TENANTS)]
    assert all(each["passages"] == 1 for each in uploaded)


def test_an_engine_that_holds_prompts_by_itself_finds_them_for_their_tenant_alone() -> None:
    one, other = (ServerTenant(name, RecyclingTable("typist", entries=8)) for name in ("one", "other"))
    first = one.take([1, 2, 3])
    one.keep([1, 2, 3], first)
    assert one.take([7, 8]).tenant is first.tenant
    assert other.take([1, 2, 3]).tenant is not first.tenant
    assert PrefixCache().tenant is not PrefixCache().tenant
