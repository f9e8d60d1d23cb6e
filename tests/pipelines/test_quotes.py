"""Quotes: headings, links and badges of Markdown are shown but not quoted; other text is unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.pipelines.quotes import Quote, lines_of, quotable_lines
from antiphon.retrieval import Passage

BADGE = "[![Build (Linux)](https://ci.org/a(b).svg)](https://ci.org)"
LINES = st.sampled_from(
    ["", "Wax melts. It is yellow.", "and keeps", "# Wax. Why?", "----", "[Wax](#wax)", "[wax]: w.md", BADGE, "\r"]
)


def shown(text: str, source: str = "bees.md") -> list[Quote | str]:
    """Return the quotable lines as quotes and the others as text."""
    lines = lines_of([Passage.at(source, 0, text)])[0]
    return [line if line.is_quotable else line.sentence for line in lines]


@pytest.mark.parametrize(
    "signpost",
    [
        "Opening the Hive\n----------------",
        "The Hive\r\n========\r",
        "## I have a hive. Can I move it?",
        "## Wax. It melts. ##",
        "[Opening the Hive](#opening-the-hive)",
        "[wax]:  <wax.md> \"All of wax\"\n[honey]: honey.md 'All of it'",
        "![x](y)",
        f"{BADGE}&nbsp;![wax][wax-badge] <br/>\n{BADGE}",
        "![logo](hive.png) Bees\n======================",
    ],
)
def test_markdown_signposts_are_shown_but_not_quoted(signpost: str) -> None:
    lines = shown(f"Bees dance.\n\n{signpost}\n\nWax melts.")
    assert [line for line in lines if isinstance(line, Quote)] == [Quote(1, "Bees dance."), Quote(1, "Wax melts.")]
    assert " ".join(line for line in lines if isinstance(line, str)) == " ".join(signpost.split())


def test_text_directly_below_a_heading_is_quoted_without_it() -> None:
    assert shown("## Wax\nIt melts.") == ["## Wax", Quote(1, "It melts.")]
    assert shown("Wax\n---\nIt melts.") == ["Wax ---", Quote(1, "It melts.")]


@pytest.mark.parametrize(
    "text",
    [
        "[hive.vim](https://bees.org/vim)",
        "[Wax](wax.md#melting)",
        "[Wax](#wax) melts.",
        "[Wax](#wax) and [honey](#honey)",
        "[Wax](#wax)\n  melts in the sun.",
        "Of what melts, see\n[Wax](#wax)",
        "Press\n![open](open.png)\nto open it.",
        "[^1]: Honey",
        "[Hive]: keep it dry",
    ],
)
def test_text_with_content_is_unchanged(text: str) -> None:
    for mark in ("", "- "):
        assert shown(f"{mark}{text}\n") == shown(f"{mark}{text}\n", "bees.txt")


@pytest.mark.parametrize("source", ["bees.txt", "bees.html", "bees", "https://bees.org/bees.md/1"])
def test_markdown_signposts_are_text_in_other_formats(source: str) -> None:
    text = "# The Hive\n\n- [Wax](#wax)\n\n![x](y)\n\n![x](y) [y]: z\n"
    assert [line for line in shown(text, source) if isinstance(line, Quote)] == [
        Quote(1, each) for each in ("# The Hive", "[Wax](#wax)", "![x](y)", "![x](y) [y]: z")
    ]
    text = "The Hive\n========\n\n- [Wax](#wax)\n\n![x](y)\n"
    assert quotable_lines([Passage.at("docs/BEES.Markdown", 0, text)]) == [[]]


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_no_character_of_a_text_is_lost(text: str) -> None:
    lines = [line.sentence if isinstance(line, Quote) else line for line in shown(text)]
    assert "".join("".join(lines).split()) == "".join(text.split())
