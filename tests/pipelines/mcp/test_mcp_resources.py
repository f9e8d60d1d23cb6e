"""Documents as resources of the MCP server."""

from pathlib import Path

import pytest
from mcp import Client, MCPError

from antiphon.pipelines import Rag
from antiphon.pipelines.extractive_model import EXTRACTIVE, ExtractiveModel
from antiphon.pipelines.mcp.documents import MAX_TEXT_LENGTH, PAGE_SIZE
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.service import Service, make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.conftest import TEXTS
from tests.pipelines.mcp.conftest import Connect, index_of_documents


def quoting_service(folder: Path) -> Service:
    rag = Rag(Retriever.open(folder), k=3)
    return make_service(ExtractiveModel(), ServerSettings(), name=EXTRACTIVE, collections=[Collection("docs", rag)])


async def read(client: Client, uri: str) -> str:
    [contents] = (await client.read_resource(uri)).contents
    return str(getattr(contents, "text", ""))


async def test_a_document_has_the_text_of_its_passages_in_order(connect: Connect) -> None:
    async with connect() as client:
        [resource] = (await client.list_resources()).resources
        text = await read(client, resource.uri)
        [template] = (await client.list_resource_templates()).resource_templates
    assert text == "\n\n".join(TEXTS)
    assert (resource.name, resource.title) == ("bees.txt", "/home/someone/bees.txt")
    assert resource.uri.startswith(template.uri_template.partition("{")[0])


async def test_every_document_is_on_one_page_of_the_list(connect: Connect, tmp_path: Path) -> None:
    names = [f"{number:03d}.txt" for number in range(2 * PAGE_SIZE + 1)]
    folder = index_of_documents(tmp_path / "index", {name: f"The text of {name}." for name in names})
    service = quoting_service(folder)
    async with connect(service) as client:
        pages: list[list[str]] = []
        cursor = None
        while not pages or cursor is not None:
            page = await client.list_resources(cursor=cursor)
            pages.append([each.name for each in page.resources])
            cursor = page.next_cursor
    service.queue.close()
    assert [len(page) for page in pages] == [PAGE_SIZE, PAGE_SIZE, 1]
    assert [name for page in pages for name in page] == names


async def test_a_long_document_is_read_in_parts_without_gaps_or_repetition(connect: Connect, tmp_path: Path) -> None:
    whole = "".join(f"Sentence {number} of a long document. " for number in range(8000))
    passages = [Passage.at("long.txt", start, whole[start : start + 1000]) for start in range(0, len(whole), 900)]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    service = quoting_service(tmp_path / "index")
    async with connect(service) as client:
        [resource] = (await client.list_resources()).resources
        parts, uri = [], resource.uri
        while uri:
            part, _, following = (await read(client, uri)).partition("\n\n[The document continues in ")
            parts.append(part)
            uri = following.removesuffix("]")
    service.queue.close()
    assert len(parts) == len(whole) // MAX_TEXT_LENGTH + 1
    assert "".join(parts) == whole


@pytest.mark.parametrize(
    "uri",
    [
        "antiphon://documents/docs/0123456789abcdef",
        "antiphon://documents/wasps/0123456789abcdef",
        "antiphon://documents/docs/..%2F..%2Fetc%2Fpasswd",
        "file:///etc/passwd",
        "antiphon://documents/",
        "x",
    ],
)
async def test_an_unknown_uri_is_an_error_of_the_protocol(connect: Connect, uri: str) -> None:
    async with connect() as client:
        with pytest.raises(MCPError, match=r"There is no|Unknown resource") as refused:
            await client.read_resource(uri)
    assert refused.value.code == -32602


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "²", "9" * 10_000])
async def test_an_unknown_cursor_is_an_error_of_the_protocol(connect: Connect, cursor: str) -> None:
    async with connect() as client:
        with pytest.raises(MCPError, match="cursor"):
            await client.list_resources(cursor=cursor)
