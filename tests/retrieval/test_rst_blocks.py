"""Blocks of reStructuredText, and listings in plain text: titles are no code, directives with prose are prose."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.retrieval import HashEmbedder, chunk_document
from antiphon.retrieval.block import BlockKind, Markup
from antiphon.retrieval.formats.rst import read_rst_document
from antiphon.retrieval.rst_tables import rst_table_rows
from antiphon.retrieval.segmentation import blocks, code_lines

count = HashEmbedder().count_tokens
LINES = st.sampled_from(
    [
        *("", "Wax", "~~~", "====", "Wax melts::", "    wax = 3", "  - a", ".. note:: Now", "   :class: x", ">>> wax"),
        *(".. code-block:: sh", "=== ===", "+---+", "| a |", ".. _wax:", "::", "\t", "\r", ".. option:: --wax", ".."),
    ]
)


def parts(text: str, kind: BlockKind, markup: Markup = Markup.RST) -> list[str]:
    return [text[each.start : each.end] for each in blocks(text, markup=markup) if each.kind is kind]


@given(st.lists(LINES, max_size=30).map("\n".join), st.integers(0, 10), st.sampled_from(Markup))
def test_blocks_of_every_markup_cover_the_whole_text_in_order(text: str, start: int, markup: Markup) -> None:
    start = min(start, len(text))
    found = list(blocks(text, start, markup=markup))
    assert [each.end for each in found][-1:] == [len(text)][: len(text) - start]
    assert all(one.end == other.start for one, other in pairwise(found))
    assert all(one.start < one.end for one in found)
    assert not found or found[0].start == start


@pytest.mark.parametrize("mark", ["~", "=", "-", "^", "`", ":", "'", '"', "+", "*", "#"])
def test_an_underlined_title_is_markup_and_the_text_below_is_prose(mark: str) -> None:
    text = f"Wax\n{mark * 3}\n\nWax melts. It is\nyellow.\n"
    assert parts(text, BlockKind.MARKUP) == [f"Wax\n{mark * 3}\n"]
    assert parts(text, BlockKind.CODE) == []
    assert parts(f"{mark * 5}\nHoney\n{mark * 5}\n\nKeeps.\n", BlockKind.MARKUP) == [f"{mark * 5}\nHoney\n{mark * 5}\n"]


@pytest.mark.parametrize("name", ["note", "tip", "admonition", "versionadded", "option", "py:function", "seealso"])
def test_the_text_of_a_directive_is_prose(name: str) -> None:
    text = f".. {name}:: Wax melts.\n   :class: wide\n\n   It is\n   yellow.\n\nEnd.\n"
    prose = "".join(parts(text, BlockKind.TEXT))
    assert prose.split() == (".. versionadded:: " * (name == "versionadded") + "Wax melts. It is yellow. End.").split()


@pytest.mark.parametrize("name", ["code-block", "code", "sourcecode", "prompt", "doctest"])
def test_code_of_a_directive_and_below_a_double_colon_is_code(name: str) -> None:
    text = (
        f"Run:\n\n.. {name}:: sh\n   :linenos:\n\n   make\n\n   make test\n\nThen::\n\n  ls\n\nor\n\n::\n\n cd\n\nEnd."
    )
    assert [code_lines(code) for code in parts(text, BlockKind.CODE)] == [
        ["   make", "   make test"],
        ["  ls"],
        [" cd"],
    ]
    assert "".join(parts(text, BlockKind.TEXT)).split() == ["Run:", "Then::", "or", "End."]


def test_targets_comments_and_hidden_directives_are_markup() -> None:
    text = (
        ".. _wax:\n\n.. image:: wax.png\n   :alt: Wax\n\n.. toctree::\n\n   wax\n\n"
        ".. a remark\n   goes on\n\nWax melts.\n"
    )
    assert "".join(parts(text, BlockKind.TEXT)).split() == ["Wax", "melts."]


SIMPLE = "=====  =====\nHive   Bees\n=====  =====\noak    many\n       more\npine   few\n=====  =====\n"
GRID = (
    "+------+------------+\n| Hive | Bees       |\n+======+============+\n"
    "| oak  | many and   |\n|      | more       |\n+------+------------+\n"
)


def test_the_wrapped_lines_of_a_cell_are_one_text() -> None:
    header, rows = rst_table_rows(GRID)
    assert [text for text, _ in header] == ["Hive | Bees"]
    assert [text for text, _ in rows] == ["oak | many and more"]
    assert [GRID[start:end] for _, (start, end) in rows] == ["| oak  | many and   |\n|      | more       |\n"]
    assert [text for text, _ in rst_table_rows(SIMPLE)[1]] == ["oak | many more", "pine | few"]
    assert parts(f"Bees:\n\n{SIMPLE}\nEnd.", BlockKind.TABLE) == [SIMPLE]
    assert parts(f"Bees:\n\n{GRID}\nEnd.", BlockKind.TABLE) == [GRID]
    assert [text for text, _ in rst_table_rows("| oak  | many |\n| pine | few  |\n")[1]] == ["oak many", "pine few"]


def test_a_literal_block_stays_whole_with_the_line_that_introduces_it() -> None:
    prose = " ".join(f"Sentence number {number} says little." for number in range(5))
    text = f"{prose} To build it::\n\n   cmake -B build\n\n   cmake --build build\n\nDone.\n"
    passages = chunk_document(read_rst_document(text.encode(), "a.rst"), count, max_tokens=30)
    [whole] = [passage.text for passage in passages if "cmake -B" in passage.text]
    assert whole.startswith("To build it::\n\n   cmake -B build\n\n   cmake --build build")


def test_an_indented_listing_below_a_colon_is_code_in_plain_text() -> None:
    text = (
        "Recover with one command:\n\n    bzip2recover wax.bz2\n    ls\n\n"
        "It is:\n\n    Wax melts in the sun.\n\n>>> x:\n\n    >>> y\n"
    )
    assert parts(text, BlockKind.CODE, Markup.PLAIN) == ["    bzip2recover wax.bz2\n    ls\n"]


def test_a_passage_that_begins_inside_code_knows_where_the_code_ends() -> None:
    code = "\n".join(f"command --number {number}" for number in range(12))
    for name, text in (
        ("a.md", f"# Wax\n\n```\n{code}\n```\n\nWax melts. It is\nyellow.\n"),
        ("a.rst", f"Wax\n===\n\nRun::\n\n    {code.replace(chr(10), chr(10) + '    ')}\n\nWax melts. It is\nyellow.\n"),
    ):
        from antiphon.retrieval.formats import markup_of, reader_for

        document = reader_for(name[1:])(text.encode(), name)
        *_, last = chunk_document(document, count, max_tokens=24)
        assert "command" in last.text
        assert "melts" in last.text
        kinds = [
            last.text[each.start : each.end].split()[-1]
            for each in blocks(last.text, markup=markup_of(name), code=last.code_spans)
            if each.kind is BlockKind.TEXT and last.text[each.start : each.end].strip()
        ]
        assert kinds == ["yellow."]
