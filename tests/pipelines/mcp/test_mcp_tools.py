"""Tools and resources over MCP: schemas, answers, documents, and errors that name what is wrong."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag
from antiphon.pipelines.extractive_model import EXTRACTIVE, ExtractiveModel
from antiphon.pipelines.mcp import server as mcp_server
from antiphon.pipelines.mcp.documents import MAX_TEXT_LENGTH, PAGE_SIZE
from antiphon.pipelines.mcp.server import LOADING, make_mcp_server
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.service import Service, make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.conftest import TEXTS
from tests.pipelines.mcp.conftest import Connect, Gate, ProgressLog, index_of_documents, text_of
from tests.pipelines.server.conftest import tiny_service

pytestmark = pytest.mark.slow

TOOLS = ("search", "ask", "read_passage")
QUESTION = "How many eggs does a queen lay?"
NAMES = ("where", "k", "collection", "query", "year", "$and", "$or", "$not", "$gte", "$in", "source")
UNANSWERED = "What does a ticket to Lisbon cost?"


def bounded(schema: dict[str, Any]) -> bool:
    """Return whether every text, number and object in the arguments of a tool has limits."""
    if "anyOf" in schema:
        return all(bounded(each) for each in schema["anyOf"])
    limits = {
        "string": {"maxLength", "minLength"},
        "integer": {"minimum", "maximum"},
        "object": {"maxProperties"},
        "null": set(),
    }
    return limits[schema["type"]] <= set(schema)


async def test_the_schemas_of_all_tools_are_strict(connect: Connect) -> None:
    async with connect() as client:
        tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == ["search", "ask", "read_passage"]
    for tool in tools:
        assert tool.input_schema["additionalProperties"] is False
        assert all(bounded(each) and each["description"] for each in tool.input_schema["properties"].values())
        assert tool.output_schema is not None
        for part in (tool.output_schema, *tool.output_schema.get("$defs", {}).values()):
            assert part["additionalProperties"] is False
            assert set(part["required"]) == set(part["properties"])
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint


async def test_search_returns_passages_with_their_places_and_falling_scores(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("search", {"query": "queen eggs", "k": 2})
    assert json.loads(text_of(result)) == result.structured_content
    found = result.structured_content["passages"]
    assert len(found) == 2
    assert found[0]["text"] == TEXTS[2]
    assert (found[0]["source"], found[0]["location"]) == ("/home/someone/bees.txt", "lines 3")
    assert 1 >= found[0]["score"] >= found[1]["score"] >= 0


async def test_search_returns_only_passages_that_match_the_filter(connect: Connect) -> None:
    async with connect() as client:
        arguments = {"query": "queen eggs", "where": {"year": {"$lt": 2023}, "$not": {"year": 2021}}}
        result = await client.call_tool("search", arguments)
    assert [each["text"] for each in result.structured_content["passages"]] == [TEXTS[1]]


async def test_an_answer_has_citations_that_lead_to_its_passages(connect: Connect) -> None:
    async with connect() as client:
        result = (await client.call_tool("ask", {"question": QUESTION})).structured_content
        [cited, *_] = result["citations"]
        passage = (await client.call_tool("read_passage", {"id": cited["passage_id"]})).structured_content
    assert not result["is_refusal"]
    assert result["answer"][cited["start"] : cited["end"]] == cited["text"]
    assert cited["text"] in passage["text"]
    assert cited["location"] == "line 3"
    assert cited["source"] == passage["source"]
    assert cited["passage_id"] in result["passage_ids"]
    assert result["produced_by"].startswith("Quoted from 1 passage")
    assert (result["is_complete"], result["collection"]) == (True, "docs")


async def test_a_refusal_says_so_and_shows_the_nearest_sentences(connect: Connect) -> None:
    async with connect() as client:
        result = (await client.call_tool("ask", {"question": UNANSWERED})).structured_content
    assert result["is_refusal"]
    assert result["citations"] == []
    assert {each["text"] for each in result["nearest"]} <= set(TEXTS)
    assert [each["passage_id"] for each in result["nearest"]] == result["passage_ids"]


async def test_clients_of_other_machines_see_no_paths(connect: Connect) -> None:
    async with connect(is_local=False) as client:
        results = [
            await client.call_tool("search", {"query": "bees"}),
            await client.call_tool("ask", {"question": QUESTION}),
            await client.list_resources(),
        ]
    texts = [each.model_dump_json() for each in results]
    assert all("bees.txt" in text and "someone" not in text for text in texts)


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("search", {}, "query"),
        ("search", {"query": ""}, "query"),
        ("search", {"query": "x" * 4001}, "query"),
        ("search", {"query": "bees", "k": 0}, "k"),
        ("search", {"query": "bees", "k": "5"}, "k"),
        ("search", {"query": "bees", "limit": 5}, "limit"),
        ("search", {"query": "bees", "where": {"year": {"$near": 1}}}, "$near"),
        ("search", {"query": "bees", "where": {"$and": []}}, "$and"),
        ("search", {"query": "bees", "where": {str(each): each for each in range(21)}}, "where"),
        ("search", {"query": "bees", "collection": "wasps"}, "There is no collection 'wasps'"),
        ("ask", {"question": QUESTION, "collection": ""}, "collection"),
        ("read_passage", {"id": "none"}, "has no passage with this id"),
    ],
)
async def test_a_wrong_argument_is_an_error_that_names_it(
    connect: Connect, tool: str, arguments: dict[str, Any], named: str
) -> None:
    async with connect() as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert named in text_of(result)
    assert "Traceback" not in text_of(result)
    assert "internally" not in text_of(result)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tool=st.sampled_from(TOOLS), arguments=ARGUMENTS, query=st.text(max_size=20))
def test_any_arguments_give_a_result_or_an_error_of_the_client(
    connect: Connect, tool: str, arguments: dict[str, Any], query: str
) -> None:
    async def call() -> Any:
        async with connect() as client:
            plausible = {"search": {"query": query}, "ask": {"question": query}, "read_passage": {"id": query}}
            return await client.call_tool(tool, plausible[tool] | arguments)

    result = asyncio.run(call())
    assert "internally" not in text_of(result)
    assert result.is_error == (result.structured_content is None)


OPEN_QUESTION = "How do bees live?"


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
        result = await client.call_tool("ask", {"question": OPEN_QUESTION}, progress_callback=log)
    assert result.structured_content["produced_by"].startswith("Written by gated")
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


DOCUMENT = "A queen lays as many as two thousand eggs on a summer's day."


@pytest.mark.slow
async def test_an_agent_that_starts_the_command_receives_answers_and_only_messages(tmp_path: Path) -> None:
    folder = index_of_documents(tmp_path / "index", {"bees.txt": DOCUMENT})
    command = [sys.executable, "-m", "antiphon.pipelines.cli", "mcp", "--index", str(folder)]
    copied = StdioServerParameters(command="sh", args=["-c", '"$@" | tee stdout', "sh", *command], cwd=tmp_path)
    log = ProgressLog()
    with (tmp_path / "stderr").open("w") as stderr:
        async with Client(stdio_client(copied, errlog=stderr)) as client:
            tools = (await client.list_tools()).tools
            result = await client.call_tool("ask", {"question": QUESTION}, progress_callback=log)
    assert [tool.name for tool in tools] == ["search", "ask", "read_passage"]
    assert "two thousand eggs" in result.structured_content["answer"]
    assert result.structured_content["citations"][0]["source"] == "bees.txt"
    assert log.messages[0] == "Loading the documents and the model"
    messages = [json.loads(line) for line in (tmp_path / "stdout").read_text().splitlines()]
    assert len(messages) >= 4
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    assert (tmp_path / "stderr").read_text().startswith("Opening")


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
