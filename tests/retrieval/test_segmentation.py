"""Blocks cover the whole text, and code and tables are separated from prose."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.retrieval import Document, HashEmbedder, Passage, chunk_document
from antiphon.retrieval.block import BlockKind, Markup
from antiphon.retrieval.formats import format_of, markup_of
from antiphon.retrieval.formats.markup import numbered_headings
from antiphon.retrieval.segmentation import blocks, code_lines, table_rows

count = HashEmbedder().count_tokens
LINES = st.sampled_from(
    [
        *("", "Text.", "```", "```sh", "~~~", "    ```", "| a | b |", "|---|---|", "> ```", "|", "\r"),
        *("Wax", "====", "Wax melts:", "    wax = 3", "  - a", "\t"),
    ]
)


@given(st.lists(LINES, max_size=30).map("\n".join), st.integers(0, 10), st.sampled_from(Markup))
def test_blocks_of_every_markup_cover_the_whole_text_in_order(text: str, start: int, markup: Markup) -> None:
    start = min(start, len(text))
    found = list(blocks(text, start, markup=markup))
    assert [each.end for each in found][-1:] == [len(text)][: len(text) - start]
    assert all(one.end == other.start for one, other in pairwise(found))
    assert all(one.start < one.end for one in found)
    assert not found or found[0].start == start


def test_fenced_code_and_tables_are_separated_from_prose() -> None:
    text = "To build:\n\n```sh\nmake\n\nmake test\n```\nThen:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nDone.\n"
    found = [(each.kind, text[each.start : each.end]) for each in blocks(text)]
    assert [kind for kind, _ in found] == [
        BlockKind.TEXT,
        BlockKind.CODE,
        BlockKind.TEXT,
        BlockKind.TABLE,
        BlockKind.TEXT,
    ]
    assert code_lines(found[1][1]) == ["make", "make test"]
    assert table_rows(found[3][1]) == ("a | b", ["1 | 2"])


def test_a_fence_ends_only_at_a_fence_of_the_same_kind_and_length() -> None:
    text = "````md\n```\ncode\n```\n| no | row |\n````\nEnd."
    assert [each.kind for each in blocks(text)] == [BlockKind.CODE, BlockKind.TEXT]
    assert [each.kind for each in blocks("```\ncode without an end\n| a |\n")] == [BlockKind.CODE]


def test_a_table_without_a_header_has_only_rows() -> None:
    assert table_rows("| 1 | 2 |\n| 3 | 4 |\n") == ("", ["1 | 2", "3 | 4"])


def test_a_passage_keeps_code_whole_with_the_sentence_that_introduces_it() -> None:
    prose = " ".join(f"Sentence number {number} says little." for number in range(5))
    code = "```sh\ncmake -B build\n\ncmake --build build\n```"
    text = f"{prose} To build it:\n\n{code}\n"
    passages = chunk_document(Document(text, "a.md"), count, max_tokens=30)
    [whole] = [passage.text for passage in passages if "cmake -B" in passage.text]
    assert whole == f"To build it:\n\n{code}"


def test_the_embedded_text_has_its_headings_once() -> None:
    under = Passage.at("a.md", 0, "It melts.", {"title": "Wax > Heat"})
    assert under.text_with_headings == "Wax > Heat\nIt melts."
    assert (
        Passage.at("a.md", 0, "## Heat\n\nIt melts.", {"title": "Wax > Heat"}).text_with_headings
        == "Wax\n## Heat\n\nIt melts."
    )
    assert Passage.at("a.md", 0, "It melts.").text_with_headings == "It melts."


def test_numbered_sections_of_a_paper_are_found_and_table_rows_are_not() -> None:
    text = (
        "Bees and Wax\nA. Keeper\nAbstract\nWax melts. It was weighed.\n1 Introduction\nMuch is known of\n"
        "3 Greek authors who kept bees and wrote.\n2 Methods\n2.1 The hive\nA hive was opened.\n"
        "Hives   Queens\n4   Two of them\n12\n3. Results\nIt melts at 64 degrees.\nReferences\n"
    )
    found = [(heading.level, heading.title) for heading in numbered_headings(text)]
    assert found == [
        (1, "Abstract"),
        (1, "1 Introduction"),
        (1, "2 Methods"),
        (2, "2.1 The hive"),
        (1, "3. Results"),
        (1, "References"),
    ]
    assert all(text[heading.start : heading.end] == heading.title for heading in numbered_headings(text))


def test_an_indented_listing_below_a_colon_is_code_in_plain_text() -> None:
    text = (
        "Recover with one command:\n\n    bzip2recover wax.bz2\n    ls\n\n"
        "It is:\n\n    Wax melts in the sun.\n\n>>> x:\n\n    >>> y\n"
    )
    code = [each for each in blocks(text, markup=Markup.PLAIN) if each.kind is BlockKind.CODE]
    assert [text[each.start : each.end] for each in code] == ["    bzip2recover wax.bz2\n    ls\n"]


@pytest.mark.parametrize("name", ["a.md", "a.rst"])
def test_a_passage_that_begins_inside_code_knows_where_the_code_ends(name: str) -> None:
    code = "\n".join(f"command --number {number}" for number in range(12))
    text = {
        "a.md": f"# Wax\n\n```\n{code}\n```\n\nWax melts. It is\nyellow.\n",
        "a.rst": f"Wax\n===\n\nRun::\n\n    {code.replace(chr(10), chr(10) + '    ')}\n\nWax melts. It is\nyellow.\n",
    }[name]
    found = format_of(name[1:])
    assert found is not None
    document = found.read(text.encode(), name)
    assert document is not None
    *_, last = chunk_document(document, count, max_tokens=24)
    assert "command" in last.text
    assert "melts" in last.text
    kinds = [
        last.text[each.start : each.end].split()[-1]
        for each in blocks(last.text, markup=markup_of(name), code=last.code_spans)
        if each.kind is BlockKind.TEXT and last.text[each.start : each.end].strip()
    ]
    assert kinds == ["yellow."]
