"""Filters of metadata: their meaning, and that every index finds exactly the passages that match."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.retrieval import (
    Collection,
    HashEmbedder,
    MetadataFilter,
    Passage,
    PostgresIndex,
    Retriever,
    index_passages,
    read_index,
)
from antiphon.retrieval.filters import json_metadata, json_value, parse_filter
from tests.filter_reference import matches
from tests.retrieval.servers import table_address

pytestmark = pytest.mark.slow

EMBEDDER = HashEmbedder(32)
FACTS: list[dict[str, Any]] = [
    {"lang": "de", "year": 2019, "tags": ["new", "red"], "open": True, "since": date(2020, 5, 1)},
    {"lang": "en", "year": 2021.5, "tags": [], "open": False, "since": datetime(2021, 1, 2, 3, 4, tzinfo=UTC)},
    {"lang": "en", "year": "2021", "tags": "red", "open": None},
    {"year": 2021, "a \"strange' name": 1, "tags": ["red", 7, None], "place": {"city": "Rome"}},
    {"lang": "Ümlaut", "year": -3, "open": 1, "since": "2019-12-31"},
    {},
]
PASSAGES = [Passage.at(f"file{n}.txt", 0, f"The text number {n}.", facts) for n, facts in enumerate(FACTS)]

FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [0, 1, 2, 3, 4, 5]),
    ({"lang": "en"}, [1, 2]),
    ({"lang": {"$eq": "en"}}, [1, 2]),
    ({"lang": {"$ne": "en"}}, [0, 3, 4, 5]),
    ({"lang": None}, [3, 5]),
    ({"open": None}, [2, 3, 5]),
    ({"open": True}, [0]),
    ({"open": 1}, [4]),
    ({"open": False}, [1]),
    ({"year": 2021}, [3]),
    ({"year": 2021.0}, [3]),
    ({"year": "2021"}, [2]),
    ({"year": {"$gt": 2019}}, [1, 3]),
    ({"year": {"$gte": 2019, "$lt": 2021.5}}, [0, 3]),
    ({"year": {"$lte": 0}}, [4]),
    ({"year": {"$not": {"$gt": 2019}}}, [0, 2, 4, 5]),
    ({"lang": {"$in": ["de", "fr"]}}, [0]),
    ({"lang": {"$nin": ["de", "en"]}}, [3, 4, 5]),
    ({"lang": {"$in": []}}, []),
    ({"lang": {"$nin": []}}, [0, 1, 2, 3, 4, 5]),
    ({"tags": "red"}, [0, 2, 3]),
    ({"tags": 7}, [3]),
    ({"tags": {"$ne": "red"}}, [1, 4, 5]),
    ({"since": {"$gte": date(2020, 1, 1)}}, [0, 1]),
    ({"since": {"$lt": date(2020, 1, 1)}}, [4]),
    ({"since": date(2020, 5, 1)}, [0]),
    ({"a \"strange' name": {"$gte": 1}}, [3]),
    ({"lang": "Ümlaut"}, [4]),
    ({"source": "file2.txt"}, [2]),
    ({"source": {"$in": ["file2.txt", "file5.txt"]}, "lang": None}, [5]),
    ({"source": {"$ne": "file2.txt"}, "lang": "en"}, [1]),
    ({"$or": [{"lang": "de"}, {"year": {"$gt": 2021}}]}, [0, 1]),
    ({"$and": [{"lang": "en"}, {"open": False}]}, [1]),
    ({"$not": {"lang": "en", "open": False}}, [0, 2, 3, 4, 5]),
    ({"$or": [{"lang": "de"}, {"$and": [{"tags": "red"}, {"$not": {"lang": "en"}}]}], "open": {"$ne": True}}, [3]),
]


@pytest.mark.parametrize(("where", "expected"), FILTERS)
def test_a_filter_means_what_it_says(where: MetadataFilter, expected: list[int]) -> None:
    condition = parse_filter(where)
    assert [number for number, passage in enumerate(PASSAGES) if matches(condition, passage)] == expected


@pytest.fixture(scope="module", params=["folder", "postgres"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    root = tmp_path_factory.mktemp("filters")
    if request.param == "folder":
        index_passages(PASSAGES, root / "index", EMBEDDER)
        index = Retriever.open(root / "index", embedder=EMBEDDER).index
        assert isinstance(index, Collection)
        yield index
        return
    table = PostgresIndex(table_address(request.getfixturevalue("postgres_server"), "filtered"), EMBEDDER)
    table.upsert(PASSAGES, EMBEDDER.embed_documents([passage.text for passage in PASSAGES]))
    yield table
    table.close()


@pytest.mark.parametrize(("where", "expected"), FILTERS)
def test_every_index_finds_exactly_the_passages_that_match(
    full: Collection, where: MetadataFilter, expected: list[int]
) -> None:
    found = full.vector_search(EMBEDDER.embed_queries(["text"])[0], 9, where)
    assert sorted(int(passage.source[4]) for passage in found) == expected
    found = full.keyword_search("text", 9, where)
    assert sorted(int(passage.source[4]) for passage in found) == expected


def test_every_index_returns_metadata_as_json_values(full: Collection) -> None:
    found = full.vector_search(EMBEDDER.embed_queries(["text"])[0], 9)
    assert {passage.source: passage.metadata for passage in found} == {p.source: json_metadata(p) for p in PASSAGES}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"year": {"$regex": "a"}}, r"There is no operator '\$regex' \(for 'year'\); there are \$eq, \$ne, \$in"),
        ({"$nor": [{"year": 1}]}, r"There is no operator '\$nor' for filters; there are \$and, \$or, \$not"),
        ({"$and": [{"a": {"$exists": True}}]}, r"There is no operator '\$exists'"),
    ],
)
def test_every_index_refuses_an_unknown_operator_by_its_name(
    full: Collection, where: MetadataFilter, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        full.vector_search(EMBEDDER.embed_queries(["text"])[0], 9, where)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({3: "x"}, "where has the name 3; names of metadata are texts"),
        ({"$or": []}, r"\$or is \[\]; a list of at least one filter is needed"),
        ({"a": {"$in": "x"}}, r"\$in of 'a' is 'x'; a list of values is needed"),
        ({"a": {"$gt": None}}, r"\$gt of 'a' is None; a number, a text or a date is needed"),
        ({"a": object()}, "The metadata 'a' is <object object"),
        ("lang = 'de'", "where is str; a dictionary of metadata names and values is needed"),
    ],
)
def test_a_malformed_filter_is_a_clear_error(where: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        parse_filter(where)


def test_metadata_are_saved_as_json_values() -> None:
    given = (1, np.float32(0.5), np.int64(3), float("nan"), date(2020, 1, 2), {"b": (None, True)})
    assert json_value(given) == [1, 0.5, 3, None, "2020-01-02", {"b": [None, True]}]
    with pytest.raises(TypeError, match=r"The metadata 'x' is b'a' \(bytes\); JSON values and dates can be saved"):
        json_metadata(Passage.at("a", 0, "text", {"x": b"a"}))


def test_metadata_of_any_type_survive_search_and_reranking(tmp_path: Path) -> None:
    facts = {"title": None, "page": 3, "rating": 4.5, "tags": ["a", {"b": None}], "when": "2020-01-02", "open": False}
    index_passages([Passage.at("a", 0, "An owl.", facts), Passage.at("b", 0, "A fox.")], tmp_path / "i", EMBEDDER)
    assert read_index(tmp_path / "i").passages[0].metadata == facts
    [found] = Retriever.open(tmp_path / "i", embedder=EMBEDDER).search("owl", 1)
    assert (found.metadata, found.location, found.text_with_headings) == (facts, "page 3", "An owl.")


def llama_index_filters() -> Any:
    from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

    tags = MetadataFilter(key="tags", value=["red", "new"], operator=FilterOperator.ALL)
    years = MetadataFilter(key="year", value=2021, operator=FilterOperator.GTE)
    either = MetadataFilters(filters=[tags, years], condition=FilterCondition.OR)
    return MetadataFilters(filters=[either, MetadataFilter(key="lang", value="en", operator=FilterOperator.NE)])


def langchain_filter() -> Any:
    from langchain_core.structured_query import Comparator, Comparison, Operation, Operator

    tags = Comparison(comparator=Comparator.CONTAIN, attribute="tags", value="new")
    years = Comparison(comparator=Comparator.GTE, attribute="year", value=2021)
    either = Operation(operator=Operator.OR, arguments=[tags, years])
    english = Comparison(comparator=Comparator.EQ, attribute="lang", value="en")
    return Operation(operator=Operator.AND, arguments=[either, Operation(operator=Operator.NOT, arguments=[english])])


@pytest.mark.parametrize("make", [llama_index_filters, langchain_filter])
def test_filters_of_the_frameworks_mean_the_same(make: Callable[[], Any]) -> None:
    condition = parse_filter(make())
    assert [number for number, passage in enumerate(PASSAGES) if matches(condition, passage)] == [0, 3]


def test_operators_of_the_frameworks_that_are_not_supported_are_named() -> None:
    from langchain_core.structured_query import Comparator, Comparison
    from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter

    with pytest.raises(ValueError, match=r"The operator 'text_match' \(for 'a'\) is not supported; there are =="):
        parse_filter(MetadataFilter(key="a", value="b", operator=FilterOperator.TEXT_MATCH))
    with pytest.raises(ValueError, match=r"The operator 'like' \(for 'a'\) is not supported; there are eq"):
        parse_filter(Comparison(comparator=Comparator.LIKE, attribute="a", value="b"))
