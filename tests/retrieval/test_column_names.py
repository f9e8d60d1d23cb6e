"""Column names: each passage of a long table has them, and offsets still point into the displayed text."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.pipelines.citations import cite
from antiphon.pipelines.prompt import chat_prompt, plain_prompt, reader_prompt
from antiphon.pipelines.quotes import quotable_lines
from antiphon.retrieval import Document, HashEmbedder, Passage, Retriever, build_index, chunk_document
from tests.retrieval.sample_files import read_document

count = HashEmbedder().count_tokens
ROWS = [(f"Gadget{n:03}", str(1000 + n), f"Hall {n % 7}") for n in range(60)]
NAMES = "Article | Price in crowns | Warehouse"


def csv(folder: Path) -> Path:
    path = folder / "stock.csv"
    path.write_text("\n".join(",".join(row) for row in (NAMES.split(" | "), *ROWS)), encoding="utf-8")
    return path


def excel(folder: Path) -> Path:
    from openpyxl import Workbook

    book, data = Workbook(), io.BytesIO()
    for row in (NAMES.split(" | "), *ROWS):
        book.active.append(row)
    book.save(data)
    path = folder / "stock.xlsx"
    path.write_bytes(data.getvalue())
    return path


def markdown_without_bars(folder: Path) -> Path:
    path = folder / "stock.md"
    rows = "\n".join(" | ".join(row) for row in ROWS)
    path.write_text(
        f"# Stock\n\nAll of it:\n\n{NAMES}\n--- | ---: | :--\n{rows}\n\nEnd of the list.\n", encoding="utf-8"
    )
    return path


@pytest.mark.parametrize("make", [csv, excel, markdown_without_bars])
def test_each_passage_of_a_long_table_has_its_column_names(make: Callable[[Path], Path], tmp_path: Path) -> None:
    document = read_document(make(tmp_path))
    passages = [each for each in chunk_document(document, count, max_tokens=60) if "Gadget" in each.text]
    assert len(passages) > 4
    first, *others = passages
    assert "Warehouse" in first.text, "the first passage shows the header itself"
    assert not first.column_names
    assert {each.column_names for each in others} == {NAMES}
    assert all("Warehouse" not in each.text for each in others)
    assert all(document.text[each.start : each.end] == each.text for each in passages)
    assert max(count(f"{each.column_names}\n{each.text}") for each in passages) <= 60


def passage_below_header() -> Passage:
    text = f"{NAMES}\n--- | --- | ---\n" + "\n".join(" | ".join(row) for row in ROWS)
    return chunk_document(Document(text, "stock.md"), count, max_tokens=40)[3]


def test_column_names_are_embedded_and_prompted() -> None:
    passage = passage_below_header()
    assert passage.text_with_headings == f"{NAMES}\n{passage.text}"
    assert f"| {NAMES} |\n{passage.text}" in str(plain_prompt("q", [passage]).content)
    assert f"[1] | {NAMES} |\n{passage.text}" in chat_prompt("q", [passage]).content[1]["content"]  # type: ignore[index]


def test_a_quoted_row_has_the_names_of_its_columns_and_its_citation_points_to_the_row() -> None:
    passage = passage_below_header()
    [quotes] = quotable_lines([passage])
    article, price, place = passage.text.split("\n")[1].split(" | ")
    named = f"[1] Article: {article}; Price in crowns: {price}; Warehouse: {place}"
    assert quotes[1].line == named
    assert f"\n{named}\n" in reader_prompt("q", [passage]).content[1]["content"]  # type: ignore[index]
    for answer in (named, passage.text.split("\n")[1], f"It says so. {named}"):
        [citation] = cite(answer, [passage])
        assert citation.text == passage.text.split("\n")[1]
    assert not cite(NAMES, [passage]), "the names are not part of the passage's text"


def test_a_row_with_one_value_and_a_row_below_an_unknown_header_are_quoted_as_they_are() -> None:
    text = "| Item | Net |\n| --- | --- |\n| Pump \\| motor | 100 |\n| Total |  |\n\n| a | b |\n"
    [quotes] = quotable_lines([Passage.at("a.xlsx", 0, text, {})])
    assert [quote.sentence for quote in quotes] == ["Item: Pump | motor; Net: 100", "a | b"]


def test_keywords_in_column_names_find_rows_far_below_them(tmp_path: Path) -> None:
    build_index([csv(tmp_path)], tmp_path / "index", embedder=HashEmbedder(), max_tokens=40)
    retriever = Retriever.open(tmp_path / "index", reranker=None)
    found = retriever.index.keyword_search("warehouse Gadget058", 1)
    assert "Gadget058" in found[0].text
    assert found[0].column_names == NAMES
    assert len(retriever.index.keyword_search("warehouse", 100)) == len(retriever.index)  # type: ignore[arg-type]


def test_a_part_of_a_wide_row_has_the_names_of_its_own_columns() -> None:
    names = [f"name{n}" for n in range(40)]
    table = "\n".join(
        f"| {' | '.join(row)} |" for row in (names, ["---"] * 40, [f"value{n}" for n in range(40)], ["x"] * 40)
    )
    passages = chunk_document(Document(table, "wide.csv"), count, max_tokens=16)
    parts = [each for each in passages if "value" in each.text]
    assert len(parts) > 3
    for part in parts:
        numbers = [cell.strip().removeprefix("value") for cell in part.text.split("|") if "value" in cell]
        for number in numbers:
            assert f"name{number}" in part.column_names.split(" | ")
        assert len(part.column_names.split(" | ")) <= len(numbers) + 2
