"""Relevance recipe: examples match their passages."""

from collections import defaultdict

from antiphon.pipelines.quotes import quotable_lines
from antiphon.retrieval import Passage
from recipes.reader.written_questions import WrittenQuestion
from recipes.relevance.examples import RelevanceExamples


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
