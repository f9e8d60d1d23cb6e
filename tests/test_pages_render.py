"""The pages render as they are meant: commands are code blocks, and tables are tables."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_COMMAND = re.compile(r"^(antiphon (index|ask|chat|serve|bench)|pip install|python -m|git clone|docker run) ")


def texts(page: Path) -> Iterator[tuple[bool, str, list[str]]]:
    """Yield whether each text is a cell of a table, its source, and the parts of it that are not code."""
    parser = MarkdownIt("commonmark").enable("table")  # cells are split as GitHub splits them
    in_cell = False
    for token in parser.parse(page.read_text("utf-8")):
        if token.type == "inline":
            parts = [child.content for child in token.children or () if child.type == "text"]
            yield in_cell, token.content, parts
        else:
            in_cell = token.type in ("td_open", "th_open")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_is_rendered_as_prose(page: Path) -> None:
    assert [part for _, _, parts in texts(page) for part in parts if _COMMAND.search(part)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_table_is_rendered_as_one_and_no_cell_is_cut_inside_of_code(page: Path) -> None:
    for in_cell, source, parts in texts(page):
        assert not in_cell or not any("`" in part for part in parts), f"code is cut off: {source}"
        assert in_cell or not re.search(r"^\|.*\|$", source, re.MULTILINE), f"no table: {source}"
