"""Forty API keys, each of which may read one collection: over MCP none receives anything of another."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from antiphon.pipelines import Rag
from antiphon.pipelines.extractive_model import EXTRACTIVE, ExtractiveModel
from antiphon.pipelines.mcp.documents import document_uri
from antiphon.pipelines.server.access_control import AccessKeys
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.key_file import key_digest, remove_key
from antiphon.pipelines.server.service import Service, make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import Passage, Retriever
from tests.pipelines.mcp.conftest import app_with_mcp, index_of_documents, text_of
from tests.pipelines.mcp.test_mcp_http import connected
from tests.pipelines.server.live_server import live_server

pytestmark = pytest.mark.slow

KEYS = 40
OWN = re.compile(r"(?:secret|vault|file)-(\d{3})")
"""Texts, collections and documents that only one key may see."""


def secret(number: int) -> str:
    return f"The vault of secret-{number:03d} opens at noon."


def passage_of(number: int) -> Passage:
    return Passage.at(f"/srv/file-{number:03d}.txt", 0, secret(number))


def owners(text: str) -> set[int]:
    """Return the numbers of the keys that a text belongs to."""
    return {int(each) for each in OWN.findall(text)}


def service_of(folder: Path, keys: int) -> Service:
    """Return a service with a collection for each key; its keys are in the file keys.toml."""
    collections, tables = [], []
    for number in range(keys):
        name = f"vault-{number:03d}"
        index = index_of_documents(folder / name, {passage_of(number).source: secret(number)})
        collections.append(Collection(name, Rag(Retriever.open(index), k=3)))
        tables.append(f'[collections.{name}]\nindex = "{name}"\n')
        tables.append(f'[keys.k{number}]\nsha256 = "{key_digest(f"key-{number}")}"\nread = ["{name}"]\n')
    (folder / "keys.toml").write_text("\n".join(tables))
    accepted = AccessKeys(file=folder / "keys.toml")
    return make_service(ExtractiveModel(), ServerSettings(), name=EXTRACTIVE, collections=collections, keys=accepted)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return service_of(tmp_path_factory.mktemp("vaults"), KEYS)


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with live_server(app_with_mcp(service)) as address:
        yield address


class KeyHolder:
    """A client with one key, and everything that it received without asking for it by name."""

    def __init__(self, client: Client, number: int) -> None:
        self.client, self.number, self.other = client, number, (number + 1) % KEYS
        self.received: list[str] = []

    async def use_its_collection(self) -> None:
        """Call every tool and read every resource, without naming the collection."""
        question = f"When does the vault of secret-{self.number:03d} open?"
        asked = await self.call("ask", question=question)
        assert asked["answer"].endswith(secret(self.number))
        found = await self.call("search", query="vault secret opens noon", k=50)
        assert [each["id"] for each in found["passages"]] == [passage_of(self.number).id]
        await self.call("read_passage", id=passage_of(self.number).id)
        [resource] = (await self.client.list_resources()).resources
        document = await self.client.read_resource(resource.uri)
        schemas = (await self.client.list_tools(cache_mode="bypass")).model_dump_json()
        assert f"vault-{self.number:03d}" in schemas
        self.received += [resource.model_dump_json(), document.model_dump_json(), schemas]

    async def call(self, tool: str, **arguments: Any) -> Any:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, text_of(result)
        self.received.append(result.model_dump_json())
        return result.structured_content

    async def try_another_collection(self) -> None:
        """Name what belongs to another key; the answers are those for names that do not exist."""
        theirs = passage_of(self.other)
        for tool, arguments in (
            ("search", {"query": secret(self.other)}),
            ("ask", {"question": secret(self.other)}),
            ("read_passage", {"id": theirs.id}),
        ):
            errors = [
                await self.client.call_tool(tool, {**arguments, "collection": name})
                for name in (f"vault-{self.other:03d}", "unknown-name")
            ]
            assert all(each.is_error for each in errors)
            known, unknown = map(text_of, errors)
            assert known.replace(f"vault-{self.other:03d}", "unknown-name") == unknown
            self.received.append(unknown)
        result = await self.client.call_tool("read_passage", {"id": theirs.id})
        assert result.is_error
        self.received.append(text_of(result))
        for name in (f"vault-{self.other:03d}", f"vault-{self.number:03d}"):
            with pytest.raises(MCPError, match="There is no"):
                await self.client.read_resource(document_uri(name, theirs.source))
        page = await self.client.list_resources(cursor="1")
        self.received.append(page.model_dump_json())


@asynccontextmanager
async def holder(address: str, number: int) -> AsyncIterator[KeyHolder]:
    """Connect a client; every other one speaks the version of the protocol with sessions."""
    mode: Any = "legacy" if number % 2 else "auto"
    async with connected(address, f"key-{number}", mode) as client:
        yield KeyHolder(client, number)


@pytest.mark.exhaustive
async def test_forty_keys_receive_nothing_of_each_others_collections(
    address: str, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "antiphon")

    async def use(number: int) -> KeyHolder:
        async with holder(address, number) as each:
            await each.use_its_collection()
            await each.try_another_collection()
        return each

    holders = await asyncio.gather(*map(use, range(KEYS)))
    for each in holders:
        assert owners("\n".join(each.received)) == {each.number}
    public = caplog.text + service.metrics.render().decode()
    assert 'path="/mcp"' in public
    assert owners(public) == set()
    assert not re.search(r"key-\d", public)
    assert not any(key_digest(f"key-{number}") in public for number in range(KEYS))


async def test_a_key_sees_its_collection_alone_and_nothing_once_it_is_revoked(tmp_path: Path) -> None:
    with live_server(app_with_mcp(service_of(tmp_path, 2))) as address:
        async with holder(address, 1) as each:
            await each.use_its_collection()
            remove_key(tmp_path / "keys.toml", "k1")
            with pytest.raises(MCPError):
                await each.client.call_tool("search", {"query": "vault"})
