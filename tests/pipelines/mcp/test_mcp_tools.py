"""The tools of the MCP server, through the SDK's client in the same process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import TEXTS
from tests.pipelines.mcp.conftest import Connect, text_of

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
    assert result["produced_by"] == "quoted from the documents, without a language model"
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
