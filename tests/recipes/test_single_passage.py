"""`SinglePassageExamples`: every answer can be quoted from the passage, and all other questions are declined."""

from __future__ import annotations

from random import Random

from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.quotes import Quote, quotable_lines
from antiphon.retrieval import Passage
from recipes.reader.example import Question, TrainingExample
from recipes.reader.score import score
from recipes.reader.single_passage import SinglePassageExamples
from recipes.reader.structure_questions import structure_questions

BUILD = Passage.at(
    "docs/build.md",
    0,
    "## Building with sails\n\nTo build the tests:\n\n```sh\nmake tests\n```",
    {"title": "Boats > Building with sails"},
)
OPTIONS = Passage.at(
    "docs/options.md",
    0,
    "## Options\n\n- `mast`: Sets the height of the mast. Default: 9\n- `keel`: Removes the keel.\n\n"
    "| Option | Type | Meaning |\n|---|---|---|\n| anchor | iron | Stops the boat in a storm |\n",
    {"title": "Boats > Options"},
)
SAILS = Passage.at(
    "other/sails.md",
    0,
    "## Sails\n\n- `jib`: Sets the size of the jib. Default: 4\n- `main`: Removes the boom of the mast.\n",
    {"title": "Rigging > Sails"},
)
PROSE = Passage.at("docs/history.md", 0, "A sloop is a boat with one mast. It was painted blue in the winter.")


def test_headings_lists_tables_and_code_give_questions_that_they_answer() -> None:
    kinds = set()
    for seed in range(30):
        for passage in (BUILD, OPTIONS):
            lines = {quote.sentence for quote in quotable_lines([passage])[0]}
            for asked in structure_questions(passage, Random(seed)):
                assert lines.issuperset(asked.sentences)
                kinds.add(asked.kind)
    assert {"code", "item", "row"} <= kinds


def _lessons() -> SinglePassageExamples:
    others = [
        Passage.at(f"docs/{name}.md", 0, f"A {name} is a boat with {count} masts. The {name} mast is tall.")
        for name, count in (("ketch", "two"), ("schooner", "three"), ("clipper", "many"))
    ]
    return SinglePassageExamples([BUILD, OPTIONS, SAILS, PROSE, *others], seed=2)


def test_a_lesson_has_one_passage_whose_lines_answer_and_declines_the_rest() -> None:
    examples = _lessons()
    refused = 0
    for number in range(30):
        example = examples.example(number)
        [passage] = example.passages
        lines = set(quotable_lines([passage])[0])
        for question in example.questions:
            assert lines.issuperset(question.quotes)
            refused += not question.quotes
        assert any(question.quotes for question in example.questions)
    assert refused > 5
    assert examples.example(3) == _lessons().example(3)


LESSON = TrainingExample(
    (PROSE,), (Question("What is a sloop?", (Quote(1, "A sloop is a boat with one mast."),)), Question("Who?"))
)


def test_a_score_counts_greedy_answers() -> None:
    tokenizer, model = byte_tokenizer(), tiny_model(max_position_embeddings=2048)
    found = score(model, tokenizer, [LESSON])
    assert (found.answerable, found.unanswerable) == (1, 1)
    assert found.right == found.whole == found.declined == found.balanced == 0.0
