"""Relevance recipe: examples match their passages, figures, and a run of both programs."""

from __future__ import annotations

from collections import defaultdict

import pytest

from antiphon.pipelines.quotes import quotable_lines
from antiphon.pipelines.relevance import LineScores
from antiphon.retrieval import Passage
from recipes.reader.written_questions import WrittenQuestion
from recipes.relevance.evaluate import relevance_figures
from recipes.relevance.examples import LineExample, RelevanceExamples

BEES = Passage.at("docs/bees.md", 0, "Honey keeps for years. Wax melts at 64 degrees.", {"title": "Bees"})
BOATS = Passage.at("docs/boats.md", 0, "A sloop has one mast. Its keel is heavy.", {"title": "Boats"})
BATCH = [
    LineExample(BEES, "How long does honey keep?", ("Honey keeps for years.",)),
    LineExample(BEES, "Who dances?", ()),
    LineExample(BOATS, "How many masts does a sloop have?", ("A sloop has one mast.",)),
    LineExample(BOATS, "What is heavy?", ("Its keel is heavy.",)),
    LineExample(BOATS, "What is beyond reach?", ("No line of it.",)),
]


def _lines(passage: Passage) -> list[str]:
    return [quote.sentence for quote in quotable_lines([passage])[0]]


def test_pairs_are_of_every_kind_and_always_the_same() -> None:
    examples = _examples()
    pairs = examples.pairs(3, 60)
    assert pairs == _examples().pairs(3, 60) != examples.pairs(4, 60)
    answered = [one for one in pairs if one.lines]
    without = [one for one in pairs if one.without]
    assert 15 < len(answered) < 45
    assert [one.lines for one in without] == [()] * len(without) != []
    assert all(set(one.lines) | set(one.without) <= set(_lines(one.passage)) for one in pairs)
    kinds: dict[str, set[str]] = defaultdict(set)
    for one in (one for own in examples.asked.values() for one in own):
        kinds[one.kind].add(one.question)
    assert kinds["answered"] == {"Which option gives the mast?", "Which option gives the keel?"}
    assert len(kinds["made"]) > 2
    assert "Who built it?" in kinds["refused"]
    declined = {one.question for one in pairs if not one.lines and not one.without}
    assert declined == {one.question for own in examples.asked.values() for one in own if not one.lines}


def test_figures_count_right_lines_and_pairs() -> None:
    def known(question: str, _: object) -> LineScores:
        return [{BATCH[0].question: [2.0, 1], BATCH[1].question: [0, 1.5], BATCH[2].question: [1.0, 3]}[question]]

    figures = relevance_figures(known, BATCH[:3])
    assert (figures.answered, figures.declined, figures.right, figures.separated) == (2, 1, 0.5, 1.0)
    with pytest.raises(ValueError, match="give more documents"):
        relevance_figures(known, BATCH[:1])


def _examples() -> RelevanceExamples:
    passages = [
        Passage.at(f"{folder}/{name}.md", 0, f"## {name}\n\n- `{name}`: Sets the {name} of it.\n- `no-{name}`: None.")
        for folder in ("docs", "other")
        for name in ("mast", "keel", "jib")
    ]
    asked = [
        WrittenQuestion(f"docs/{name}", f"Which option gives the {name}?", (f"`{name}`: Sets the {name} of it.",), ())
        for name in ("mast", "keel")
    ]
    return RelevanceExamples(
        passages, [*asked, WrittenQuestion("docs/mast", "Who built it?", (), ("`no-mast`: None.",))], seed=2
    )
