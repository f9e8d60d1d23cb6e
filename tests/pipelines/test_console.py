"""Terminal output of an answer: its citations with their locations, and its cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.accel import Summary, Usage
from antiphon.pipelines import Answer, Citation
from antiphon.pipelines.cli import console
from antiphon.retrieval import Passage

ANSWER = Answer(
    question="?",
    text="the words [bold] of it",
    citations=(Citation(0, 10, 2, "docs/a.txt", 120, 130, "the words\n[bold] of it"),),
    passages=(Passage.at("docs/a.txt", 100, "x"),),
    usage=Usage(30, 8),
    steps=Summary(steps=4, tokens=8, seconds=1.25),
    finish_reason="stop",
)


def test_a_citation_shows_passage_source_characters_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_citations(ANSWER)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["Quoted verbatim from", "  [2] docs/a.txt, characters 120-130: “the words [bold] of it”"]


def test_a_source_below_the_root_is_shortened(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    inside = replace(ANSWER.citations[0], source=str(tmp_path / "a.txt"))
    console.show_citations(replace(ANSWER, citations=(inside,)), root=tmp_path)
    assert "[2] a.txt, characters" in capsys.readouterr().out


def test_an_answer_without_citations_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_citations(replace(ANSWER, citations=()))
    assert capsys.readouterr().out == "No six words of the answer are quoted verbatim from a passage.\n"


def test_the_cost_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_cost(ANSWER)
    console.show_cost(replace(ANSWER, finish_reason="length"))
    console.show_cost(replace(ANSWER, steps=replace(ANSWER.steps, prefill_tokens=12)))
    console.show_cost(replace(ANSWER, steps=replace(ANSWER.steps, weights="int8")))
    whole, cut, reused, few_bits = capsys.readouterr().out.splitlines()
    assert whole == "8 tokens in 4 steps, 2.00 tokens per step, 1.2 s after a prompt of 30 tokens"
    assert cut == f"{whole}; cut off by max_new_tokens"
    assert reused == f"{whole}, 12 of them prefilled"
    assert few_bits == f"{whole}; generated with int8 weights, which change the output"


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress_bars({"embed": "Embedding"}) as report:
        report("embed", 0, 7)
        report("embed", 7, 7)
        report("save", 0, 0)  # nothing to do
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Embedding" in shown.err
    assert "7/7" in shown.err
    assert "save" not in shown.err


def test_no_text_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    steering = "\x1b]0;title\x07\x9b2J"
    citation = replace(ANSWER.citations[0], source=f"a{steering}.txt", text=steering)
    console.show_citations(replace(ANSWER, citations=(citation,)))
    shown = capsys.readouterr().out
    assert not [character for character in shown if ord(character) in (7, 27, 155)]
    assert "␛]0;title␇" in shown
