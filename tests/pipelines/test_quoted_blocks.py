"""Quotable lines by markup, and the block that is quoted with the line that introduces it."""

from __future__ import annotations

import pytest

from antiphon.pipelines.passage_selection import MAX_BLOCK_LINES, quoted_block
from antiphon.pipelines.quotes import Quote, lines_of, quotable_lines
from antiphon.retrieval import Document, HashEmbedder, Passage, chunk_document
from antiphon.retrieval.formats.html import read_html_document
from antiphon.retrieval.formats.markup import read_markdown_document
from antiphon.retrieval.formats.rst import read_rst_document

count = HashEmbedder().count_tokens


def passage_of(text: str, source: str) -> Passage:
    """Return a text as a passage; reStructuredText is read first, because its passages have no markup."""
    if not source.endswith(".rst"):
        return Passage.at(source, 0, text)
    [passage] = chunk_document(read_rst_document(text.encode(), source), count)
    return passage


def sentences(text: str, source: str) -> list[str]:
    return [quote.sentence for quote in quotable_lines([passage_of(text, source)])[0]]


def block_of(line: str, text: str, source: str = "a.md") -> list[str]:
    """Return the sentences that are quoted if a line is selected."""
    quotes = quotable_lines([passage_of(text, source)])[0]
    return [each.sentence for each in quoted_block(next(each for each in quotes if each.sentence == line), quotes)]


WRAPPED = "Wax melts\nin the sun. It is yellow\nor white."


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a.rst", f"Wax\n~~~\n\n{WRAPPED}"),
        ("a.rst", ".. tip::\n   :class: wide\n\n   " + WRAPPED.replace("\n", "\n   ")),
        ("a.md", WRAPPED),
        ("a.txt", f"Wax\n~~~~\n\n{WRAPPED}"),
        ("a.md", f"> [!NOTE]\n> {WRAPPED}".replace("\n", "\n> ").replace("> > ", "> ")),
        ("a.md", f'!!! note "Wax"\n    {WRAPPED}'),
        ("a.md", f"<details>\n<summary>\n\n{WRAPPED}\n</details>"),
    ],
)
def test_a_hard_wrapped_sentence_is_one_line(source: str, text: str) -> None:
    assert sentences(text, source)[-2:] == ["Wax melts in the sun.", "It is yellow or white."]


@pytest.mark.parametrize("fence", ["```{tip}", ":::{note}", ":::note", "::: tip", "::: {.tip}", "~~~{admonition}"])
def test_the_text_of_a_directive_in_markdown_is_prose(fence: str) -> None:
    close = fence[:3]
    document = read_markdown_document(f"{fence}\n{WRAPPED}\n{close}\n".encode(), "a.md")
    [passage] = chunk_document(document, count)
    assert [quote.sentence for quote in quotable_lines([passage])[0]][-2:] == [
        "Wax melts in the sun.",
        "It is yellow or white.",
    ]
    assert sentences(f"{fence}\n{WRAPPED}\n{close}\n", "a.md")[-1] == "It is yellow or white."


def test_an_underlined_title_is_not_quoted() -> None:
    assert lines_of([Passage.at("a.txt", 0, "Wax\n~~~~\n\nWax melts.")]) == [[Quote(1, "Wax melts.")]]
    titled = Passage.at("a.txt", 0, "Wax\n\nWax melts.", {"title": "Bees > Wax"})
    assert lines_of([titled]) == [[Quote(1, "Wax melts.")]]
    assert sentences("Opening the Hive\n================\nPull.", "a.txt") == ["Pull."]


RULES = "Keep the rules in mind:\n\n- Each hive has an owner.\n- One owner at a time.\n  - Or none.\n\nMore text."


def test_a_line_with_a_colon_is_quoted_with_its_whole_list() -> None:
    items = ["Each hive has an owner.", "One owner at a time.", "Or none."]
    assert block_of("Keep the rules in mind:", RULES) == ["Keep the rules in mind:", *items]
    many = "All:\n\n" + "\n".join(f"- hive number {number}" for number in range(40))
    assert len(block_of("All:", many)) == 1 + MAX_BLOCK_LINES


def test_no_passage_ends_between_a_term_and_its_definition() -> None:
    text = "Wax is used by bees in a hive.\n\nlogger\n\n: The wrapped logger that is called.\n"
    passages = chunk_document(Document(text, "a.md"), count, max_tokens=12)
    assert [passage.text for passage in passages] == text.strip().split("\n\n", 1)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a.md", "Recover with:\n\n```sh\nhive stop\nhive recover\n```\n\nDone."),
        ("a.rst", "Recover with:\n\n.. code-block:: sh\n\n   hive stop\n   hive recover\n\nDone."),
        ("a.rst", "Recover with::\n\n   hive stop\n   hive recover\n\nDone."),
        ("a.txt", "Recover with:\n\n   hive stop\n   hive recover\n\nDone."),
    ],
)
def test_a_line_with_a_colon_is_quoted_with_the_commands_below_it(source: str, text: str) -> None:
    lead = sentences(text, source)[0]
    assert block_of(lead, text, source) == [lead, "hive stop", "hive recover"]
    assert block_of("hive recover", text, source) == ["hive recover"]


def test_a_table_is_quoted_with_the_line_that_introduces_it() -> None:
    table = "| Hive | Bees |\n|---|---|\n| oak | many |\n| pine | few |\n"
    assert block_of("The hives:", f"The hives:\n\n{table}") == ["The hives:", "oak | many", "pine | few"]


def test_nothing_is_quoted_over_text_that_cannot_be_quoted() -> None:
    assert block_of("Look:", "Look:\n\n![hive](hive.png)\n\nBees dance.") == ["Look:"]


def test_code_and_lists_of_a_page_are_blocks() -> None:
    page = (
        "<h1>Hive</h1><p>Recover with one command:</p><pre>$ hive recover\n$ hive start</pre>"
        "<p>The rules:</p><ul><li>Each hive has an owner<li>One owner</ul><p>Bees dance.</p>"
    )
    [passage] = chunk_document(read_html_document(page.encode(), "a.html"), count)
    quotes = quotable_lines([passage])[0]
    commands = [each.sentence for each in quotes if each.sentence.startswith("$")]
    assert commands == ["$ hive recover", "$ hive start"]
    by_text = {each.sentence: each for each in quotes}
    lead, rules = by_text["Recover with one command:"], by_text["The rules:"]
    assert [each.sentence for each in quoted_block(lead, quotes)] == [lead.sentence, *commands]
    assert [each.sentence for each in quoted_block(rules, quotes)] == [
        "The rules:",
        "Each hive has an owner",
        "One owner",
    ]


def test_a_line_with_a_colon_before_a_paragraph_or_an_item_is_quoted_with_the_next_line() -> None:
    text = "Mind this:\n\nBees sting. Wear a veil.\n\n- Tools:\n  - smoker\n  - brush\n"
    assert block_of("Mind this:", text) == ["Mind this:", "Bees sting."]
    assert block_of("Tools:", text) == ["Tools:", "smoker"]
    assert block_of("Bees sting.", text) == ["Bees sting."]
