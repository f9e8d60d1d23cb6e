"""Nearest sentences: a refusal shows the sentence of each passage that matches the question best."""

from __future__ import annotations

import io

from rich.console import Console

from antiphon.accel import Summary, Usage
from antiphon.pipelines.answer import Answer
from antiphon.pipelines.nearest_sentences import nearest_sentences
from antiphon.pipelines.prompt import REFUSAL
from antiphon.retrieval import Passage

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
