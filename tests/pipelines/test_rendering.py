"""Rendered answers: citations are marked, all text is escaped, and decoding traces are shown."""

import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from antiphon.accel import LanguageModel, Origin, Summary, Usage
from antiphon.pipelines import Answer, DecodingTrace, Rag, cite
from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize_json
from antiphon.pipelines.rendering.tables import result_table
from antiphon.retrieval import Passage, Retriever

EVIL = """<script>alert("x")</script> & 'it' costs 2*3*4 $ a_b_c `code` [a](b) | ![i](j) ~~no~~"""
TEXT = f"First\nof all: a queen lays many eggs.\n# No title\n- no item\n1. no number\n    no code\n{EVIL}"
PASSAGES = (
    Passage.at("keys.txt", 50, "A queen lays eggs.  A queen bee <b>dances</b> with the drones in the sun."),
    Passage.at('a"b<i>.txt', 100, f"It says: a queen lays\nmany eggs.\n{EVIL}"),
)


def answer(text: str = TEXT, passages: tuple[Passage, ...] = PASSAGES) -> Answer:
    citations = cite(text, passages, words=5)
    return Answer("Who <asks>?", text, citations, passages, Usage(30, 8), Summary(steps=4, tokens=8), "stop")


class Page(HTMLParser):
    """A parsed HTML page: its tags, the texts of its marks, and its visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.marks: list[tuple[str, str | None]] = []
        self.owned = self.drafted = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append((tag, dict(attrs)))
        if tag == "mark":
            self.marks.append(("", dict(attrs).get("title")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1][0] == "style":
            return
        self.text += data
        if self.open and self.open[-1][0] == "mark":
            self.marks[-1] = (self.marks[-1][0] + data, self.marks[-1][1])
        classes = [attrs.get("class") for _, attrs in self.open]
        if "step" in classes:
            self.owned += data if "own" in classes else ""
            self.drafted += "" if "own" in classes else data


def terminal(renderable: object, *, colour: bool = False) -> str:
    console = Console(file=io.StringIO(), width=300, force_terminal=colour, color_system="standard" if colour else None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_html_marks_citations_with_passage_and_location() -> None:
    shown = answer()
    page = Page(shown._repr_html_())
    copied = shown.citations[0]
    assert (copied.passage, TEXT[copied.start : copied.end]) == (2, "a queen lays many eggs")
    location = f"characters {copied.source_start}-{copied.source_end}"
    assert page.marks[0] == ("a queen lays many eggs", f'Quoted verbatim from [2] a"b<i>.txt, {location}')
    assert f'[2] a"b<i>.txt, {location}: “a queen lays many eggs”' in page.text
    assert [text for text, _ in page.marks].count("a queen lays\nmany eggs") == 1, "marked in the passage too"
    assert "a queen lays many eggs[2]" in page.text, "the number accompanies the colour"


def test_text_of_answers_and_passages_is_never_markup_in_html() -> None:
    page = Page(answer()._repr_html_())
    allowed = {"div", "style", "b", "mark", "sup", "small", "ol", "li", "details", "summary"}
    assert set(page.tags) <= allowed
    assert page.tags.count("b") == 1, "the question; the <b> of a passage is text"
    assert page.open == []
    assert "Who <asks>?" in page.text
    assert EVIL.split(" &")[0] in page.text
    assert "<b>dances</b>" in page.text


def test_the_terminal_shows_citations_with_and_without_colours() -> None:
    shown = answer()
    lines = terminal(shown).splitlines()
    assert "of all: a queen lays many eggs[2]." in lines
    assert '  [2] a"b<i>.txt, characters 109-131: “a queen lays many eggs”' in lines
    assert "\x1b[4;33ma queen lays many eggs" in terminal(shown, colour=True)


def test_drafting_tells_drafted_tokens_from_the_models_own() -> None:
    origins = (Origin(0, 3, 0, False), Origin(3, 5, 1, True), Origin(5, 9, 1, True), Origin(9, 12, 1, False))
    drafting = DecodingTrace("one, two <i>", (*origins, Origin(12, 12, 2, True)))
    page = Page(drafting._repr_html_())
    assert (page.owned, page.drafted) == ("one<i>", ", two ")
    assert page.tags.count("i") == 0
    assert "5 tokens in 3 steps; 3 of them were drafted." in page.text
    assert terminal(drafting).startswith("│one│, two <i>\n"), "the last forward added no text"
    assert "\x1b[32m, two \x1b[0m\x1b[1;4m<i>" in terminal(drafting, colour=True)
    assert DecodingTrace("", ()).caption == "0 tokens in 0 steps; 0 of them were drafted."


@pytest.mark.parametrize("max_new_tokens", [1, 40])
def test_an_answers_drafting_is_what_its_steps_counted(
    retriever: Retriever, tiny: LanguageModel, max_new_tokens: int
) -> None:
    shown = Rag(retriever, tiny).ask("How many?", max_new_tokens=max_new_tokens, num_draft_tokens=16)
    assert shown.decoding_trace.num_steps == shown.steps.steps
    assert shown.decoding_trace.num_drafted == shown.steps.accepted
    assert "".join(step.drafted + step.own for step in shown.decoding_trace.steps) == shown.text
    assert sum(step.tokens for step in shown.decoding_trace.steps) <= shown.usage.completion_tokens
    assert replace(shown, origins=()).as_dict()["origins"] == []


HOSTILE = "safe \x1b[31mred\x9b2J \u202egnp.exe\u2066 \udcff"


def test_control_characters_are_replaced_in_every_medium() -> None:
    passage = Passage.at(f"{HOSTILE}.txt", 0, f"It says {HOSTILE} and so on to the end")
    text = f"It says {HOSTILE} and so on to the end."
    shown = Answer(HOSTILE, text, cite(text, [passage]), (passage,), Usage(3, 8), Summary(steps=4, tokens=8), "stop")
    drafting = DecodingTrace(HOSTILE, (Origin(0, len(HOSTILE), 0, True),))
    assert len(shown.citations) == 1
    media = [shown._repr_html_(), terminal(shown), drafting._repr_html_(), terminal(drafting)]
    for medium in media:
        assert [sign for sign in HOSTILE if sign in medium and not sign.isprintable()] == []
        assert "␛[31mred" in medium


def test_sanitized_json_keeps_its_value() -> None:
    value = {HOSTILE: [HOSTILE, 1, None], "naïve": "שלום"}
    written = sanitize_json(value)
    assert json.loads(written) == value
    assert [sign for sign in written if not sign.isprintable()] == []
    assert "naïve" in written
    written.encode()


PLACES = (
    Passage.at("bzip2-manual.pdf", 0, "The tool compresses files with the Burrows-Wheeler algorithm.", {"page": "6"}),
    Passage.at("cli.rst", 0, "Put :file:`.flaskenv` next to it. The `env` is read first, unless it is off.",
               {"title": "Command line > :doc:`Disable dotenv`", "lines": "4-5"}),
    Passage.at("notes.txt", 0, "Nothing.\nThe key of the hut hangs on the hook.", {"lines": "7-8"}),
)  # fmt: skip
QUOTED = (
    "[1] The tool compresses files with the Burrows-Wheeler algorithm.\n"
    "[2] Put :file:`.flaskenv` next to it. The `env` is read first, unless it is off.\n"
    "[3] The key of the hut hangs on the hook."
)
FOUND = ("bzip2-manual.pdf, p. 6", "cli.rst, Disable dotenv", "notes.txt, line 8")


def test_a_citation_names_the_page_the_section_or_the_line() -> None:
    shown = answer(QUOTED, PLACES)
    html = Page(shown._repr_html_()).text
    for number, place in enumerate(FOUND, start=1):
        assert f"  [{number}] {place}: “" in terminal(shown)
        assert f"[{number}] {place}: “" in html


def test_quotes_are_shown_without_markup_and_with_one_number() -> None:
    shown = answer(QUOTED, PLACES)
    quote = "Put .flaskenv next to it. The env is read first, unless it is off"
    lines = terminal(shown).splitlines()
    assert lines[1] == f"{quote}[2]."
    assert f"  [2] {FOUND[1]}: “{quote}”" in lines
    page = Page(shown._repr_html_())
    assert f"{quote}[2]." in page.text
    assert "[2] Put" not in page.text
    assert shown.text == QUOTED, "the answer itself is verbatim"


def test_markup_and_control_characters_in_a_cell_are_text() -> None:
    assert "[bold]␛[2Jx" in terminal(result_table("", {"a": "a"}, [{"a": "[bold]\x1b[2Jx"}]))


def test_no_text_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    steering = "\x1b]0;title\x07\x9b2J"
    citation = replace(answer().citations[0], source=f"a{steering}.txt", text=steering)
    console.show_citations(replace(answer(), citations=(citation,)))
    shown = capsys.readouterr().out
    assert not [character for character in shown if ord(character) in (7, 27, 155)]
    assert "␛]0;title␇" in shown
