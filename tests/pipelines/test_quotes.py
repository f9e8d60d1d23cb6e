"""Quotes: which lines can be quoted, with which block, and how they are displayed."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from antiphon.accel import Summary, Usage
from antiphon.pipelines.answer import Answer
from antiphon.pipelines.citations import nearest_sentences
from antiphon.pipelines.passage_selection import MAX_BLOCK_LINES, quoted_block
from antiphon.pipelines.prompt import REFUSAL
from antiphon.pipelines.quotes import Quote, lines_of, quotable_lines
from antiphon.pipelines.rendering.plain_quotes import without_markup
from antiphon.retrieval import HashEmbedder, Passage, chunk_document
from antiphon.retrieval.formats.html import read_html_document
from antiphon.retrieval.formats.rst import read_rst_document

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


@pytest.mark.parametrize(
    ("quote", "shown"),
    [
        ("Put it into :file:`.flaskenv` first.", "Put it into .flaskenv first."),
        ("See :py:func:`~flask.Flask.run` and :ref:`the guide <guide>`.", "See run and the guide."),
        ("Call {py:func}`attrs.define`, or {doc}`this <init>`.", "Call attrs.define, or this."),
        ("Disable dotenv ~~~~~~~~~~~~~~ Flask reads it.", "Disable dotenv Flask reads it."),
        ("Disable dotenv\n--------------\nFlask reads it.", "Disable dotenv\nFlask reads it."),
        ("Only the voice\n</summary>", "Only the voice\n"),
        ("<b>Never</b> do <a href='x'>this</a>.<br>", "Never do this. "),
        ("Read [the docs](docs/a.md#b) or [this][1], **now** and *here*.", "Read the docs or this, now and here."),
        ("`Jinja <https://jinja.example>`_ renders, see `templates`_.", "Jinja renders, see templates."),
        (".. versionadded:: 2.0", "New in version 2.0"),
        (".. note::\n   Keep it.", "Note:\n   Keep it."),
        ("```{tip}\nKeep it.\n```", "Keep it.\n"),
        (r"Use \*args\* and \_x.", "Use *args* and _x."),
        ("Some text.[^1] {#anchor}", "Some text. "),
    ],
)
def test_markup_is_removed(quote: str, shown: str) -> None:
    assert without_markup(quote) == shown


@pytest.mark.parametrize(
    "quote",
    [
        "def f(*args, **options): return f(**a, **b)",
        "The method __init__ and the name __all__ stay.",
        "git clone <url> and kill <code>",
        "a * b * c and 2**3**4",
        "# a comment of a shell",
        "[1] The queen lays eggs. [2] So it is.",
        "--out DIR and -m FNAME",
    ],
)
def test_what_only_looks_like_markup_is_kept(quote: str) -> None:
    assert without_markup(quote) == quote


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
    assert block_of("The hives:", f"The hives:\n\n{table}") == [
        "The hives:",
        "Hive: oak; Bees: many",
        "Hive: pine; Bees: few",
    ]


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


PASSAGES = (
    Passage.at("hive.md", 100, "Bees dance. A hive is opened in spring. The hive is heavy."),
    Passage.at("build.md", 0, "To build:\n\n```sh\ncmake -B build -D HIVE=ON\nmake\n```"),
    Passage.at("wax.md", 7, "Wax melts. It is yellow."),
)
QUESTION = "When are hives opened with HIVE=ON?"


def _answer(text: str) -> Answer:
    return Answer(QUESTION, text, (), PASSAGES, Usage(1, 1), Summary(steps=1, tokens=1, seconds=0.0), "stop")


def test_the_sentence_with_the_rarest_words_of_the_question_is_chosen() -> None:
    first, second, third = nearest_sentences(QUESTION, PASSAGES)
    assert first.text == "A hive is opened in spring."
    assert second.text == "cmake -B build -D HIVE=ON"
    assert third.text == "Wax melts."  # no sentence shares a word
    for each in (first, second, third):
        passage = PASSAGES[each.passage - 1]
        assert passage.text[each.start - passage.start : each.end - passage.start] == each.text


def test_a_refusal_shows_the_nearest_sentences_in_every_medium() -> None:
    refusal = _answer(REFUSAL)
    out = io.StringIO()
    Console(file=out, width=200).print(refusal)
    for shown in (out.getvalue(), refusal._repr_html_()):
        assert "hive.md, characters 112-139" in shown
        assert "A hive is opened in spring." in shown
    assert [each["passage"] for each in refusal.as_dict()["nearest"]] == [1, 2, 3]


def test_a_table_of_contents_is_not_quoted() -> None:
    text = "1 Introduction ........ 3\nA.2 Costs . . . . . . . xi\n\nWait, they came... 3 of them."
    [lines] = quotable_lines([Passage.at("a.txt", 0, text)])
    assert " ".join(line.sentence for line in lines) == "Wait, they came... 3 of them."
