"""Terminal output of an answer: its citations with their locations, and its cost."""

from __future__ import annotations

from dataclasses import replace

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
