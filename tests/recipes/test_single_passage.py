"""`SinglePassageExamples`: every answer can be quoted from the passage, and all other questions are declined."""

from __future__ import annotations

from random import Random

import pytest

from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.quotes import Quote, lines_of, quotable_lines
from antiphon.retrieval import Passage
from recipes.reader.encoding import encode_example
from recipes.reader.example import Question, TrainingExample
from recipes.reader.multi_passage import is_answered_by_other
from recipes.reader.score import score
from recipes.reader.single_passage import SinglePassageExamples
from recipes.reader.structure_questions import structure_questions
from recipes.reader.train import answer_loss

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


def test_lines_of_code_and_rows_can_be_quoted_and_names_of_columns_cannot() -> None:
    assert [quote.sentence for quote in quotable_lines([BUILD])[0]] == ["To build the tests:", "make tests"]
    rows = [line for line in lines_of([OPTIONS])[0] if "Type" in str(line) or "iron" in str(line)]
    assert rows == ["Option | Type | Meaning", Quote(1, "anchor | iron | Stops the boat in a storm")]


def test_headings_lists_tables_and_code_give_questions_that_they_answer() -> None:
    kinds = set()
    for seed in range(30):
        for passage in (BUILD, OPTIONS):
            lines = {quote.sentence for quote in quotable_lines([passage])[0]}
            for asked in structure_questions(passage, Random(seed)):
                assert lines.issuperset(asked.sentences)
                kinds.add(asked.kind)
    assert {"code", "item", "row"} <= kinds


def test_an_introduction_to_code_says_what_the_code_does() -> None:
    asked = [one for seed in range(20) for one in structure_questions(BUILD, Random(seed)) if one.kind == "code"]
    assert {one.sentences for one in asked} == {("make tests",)}
    assert any("build the tests" in one.text for one in asked)


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


def test_near_misses_are_questions_of_other_passages_that_share_words() -> None:
    examples = _lessons()
    assert examples.near
    for index, asked in examples.near.items():
        own = {line.sentence for line in quotable_lines([examples.passages[index]])[0]}
        assert all(
            is_answered_by_other(one, (examples.passages[index],)) or not own.issuperset(one.sentences) for one in asked
        )


LESSON = TrainingExample(
    (PROSE,), (Question("What is a sloop?", (Quote(1, "A sloop is a boat with one mast."),)), Question("Who?"))
)


def test_a_score_counts_greedy_answers() -> None:
    tokenizer, model = byte_tokenizer(), tiny_model(max_position_embeddings=2048)
    found = score(model, tokenizer, [LESSON])
    assert (found.answerable, found.unanswerable) == (1, 1)
    assert found.right == found.whole == found.declined == found.balanced == 0.0


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_has_learned_a_lesson_scores_in_full() -> None:
    import torch

    tokenizer, model = byte_tokenizer(), tiny_model(max_position_embeddings=2048)
    model.requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    encoded = encode_example(LESSON, tokenizer)
    for _ in range(300):
        optimizer.zero_grad()
        loss = answer_loss(model, encoded, model.device)
        torch.autograd.backward(loss)
        optimizer.step()
        if loss.item() < 0.01:
            break
    found = score(model, tokenizer, [LESSON])
    assert found.right == found.whole == found.declined == found.balanced == 1.0
    assert found.wrongly_declined == 0.0
