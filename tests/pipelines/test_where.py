"""Filters of passages: the option `--where`, and the parameter of `Rag` and `Chat`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.accel import LanguageModel
from antiphon.pipelines.chat import Chat
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.where_option import where_filter
from antiphon.pipelines.rag import Rag
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages

FACTS = {"bees.txt": {"year": 2019, "lang": "en"}, "owls.txt": {"year": 2021, "lang": "de"}}


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    folder = tmp_path_factory.mktemp("filtered") / "index"
    passages = [Passage.at(source, 0, f"What {source} says of honey.", facts) for source, facts in FACTS.items()]
    index_passages(passages, folder, HashEmbedder())
    return Retriever.open(folder, embedder=HashEmbedder())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], None),
        (["lang=de"], {"lang": "de"}),
        (["year=2021"], {"year": 2021}),
        (['year="2021"'], {"year": "2021"}),
        (["open=true", "closed=null"], {"$and": [{"open": True}, {"closed": None}]}),
        (["a=[1]", "b={}", "c=NaN"], {"$and": [{"a": "[1]"}, {"b": "{}"}, {"c": "NaN"}]}),
        (["source=a=b.txt", "title ="], {"$and": [{"source": "a=b.txt"}, {"title": ""}]}),
        (['{"year": {"$gte": 2020}}'], {"year": {"$gte": 2020}}),
    ],
)
def test_the_option_gives_the_filter_that_it_describes(given: list[str], expected: Any) -> None:
    assert where_filter(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lang", "--where is 'lang'; give FIELD=VALUE"),
        ("=de", "give FIELD=VALUE"),
        ("{", "is not valid JSON"),
        ('{"a": {"$near": 1}}', "no operator '$near'"),
        ('{"a": {"$in": 1}}', "a list of values is needed"),
    ],
)
@pytest.mark.parametrize("command", [["ask", "What?"], ["chat"]])
def test_a_malformed_option_is_refused_before_anything_is_loaded(command: list[str], given: str, message: str) -> None:
    result = CliRunner().invoke(app, [*command, "--index", "none", "--where", given])
    assert result.exit_code == 2
    assert message in result.output


def test_answers_and_conversations_come_from_passages_that_match(retriever: Retriever, typist: LanguageModel) -> None:
    rag = Rag(retriever, typist)
    for asked in (rag.ask, Chat(rag).ask):
        for year, source in ((2019, "bees.txt"), (2021, "owls.txt")):
            answer = asked("What of honey?", where={"year": year}, max_new_tokens=1)
            assert [passage.source for passage in answer.passages] == [source]
    assert len(rag.ask("What of honey?", max_new_tokens=1).passages) == 2


def test_a_filter_that_nothing_matches_is_an_error_that_says_so(retriever: Retriever, typist: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"no passage that matches where for 'Honey\?'"):
        Rag(retriever, typist).ask("Honey?", where={"year": 1})


def serve(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["serve", "--model", "extractive", "--port", "0", *arguments])
    assert result.exit_code == 2
    return " ".join(result.output.split())


def test_a_server_refuses_collections_that_it_cannot_serve(tmp_path: Path) -> None:
    file = tmp_path / "collections.toml"
    file.write_text('[collections.law]\nindex = "missing"')
    assert "The collection 'law' cannot be opened:" in serve("--collections", str(file))
    assert "--index and --collections are given" in serve("--collections", str(file), "--index", str(tmp_path))
    file.write_text("[collections.law]")
    assert "collections.law.index: Field required" in serve("--collections", str(file))
    assert "No such file" in serve("--collections", str(tmp_path / "none.toml"))
