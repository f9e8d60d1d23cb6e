"""Completions of a batch equal those of single requests."""

from typing import Any

import pytest

from antiphon.accel import LanguageModel
from tests.table_part import part
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

PROMPTS = ["The hive stands by the river.", "Bees", "What does a queen do in winter, when it is cold?", "Wax is yellow"]
REFERENCES = [["The hive stands still."], [], ["A queen does nothing in winter.", "It is cold."], ["Wax"]]


def language_model(family: str = "llama", **options: Any) -> LanguageModel:
    return LanguageModel(tiny_model(family, seed=11), byte_tokenizer(), **options)


@pytest.mark.parametrize("batch_size", part((1, 2, 8), (2,)))
@pytest.mark.parametrize(
    "parameters",
    [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}, {"stop": ["e", "a "]}, {"drafter": "nothing"}],
    ids=["greedy", "sampled", "stops", "plain"],
)
def test_every_completion_equals_the_one_of_a_single_request(parameters: Any, batch_size: int) -> None:
    model = language_model(
        num_draft_tokens=32, recycling=False
    )  # so that the drafts of a prompt do not depend on the prompts before it
    alone = [
        model.generate(prompt, references=own, max_new_tokens=24, **parameters)
        for prompt, own in zip(PROMPTS, REFERENCES, strict=True)
    ]
    together = model.generate_batch(
        PROMPTS, references=REFERENCES, batch_size=batch_size, max_new_tokens=24, **parameters
    )
    for mine, other in zip(together, alone, strict=True):
        assert (mine.text, mine.tokens, mine.finish_reason) == (other.text, other.tokens, other.finish_reason)
        assert mine.usage == other.usage
        assert mine.steps.steps == other.steps.steps


def test_seeds_may_differ_from_prompt_to_prompt() -> None:
    model = language_model()
    said = model.generate_batch(["Bees"] * 3, seeds=[1, 2, 1], temperature=1.0, max_new_tokens=16)
    assert said[0].text == said[2].text != said[1].text
    assert said[1].text == model.generate("Bees", seed=2, temperature=1.0, max_new_tokens=16).text


def test_a_batch_takes_messages_and_an_empty_batch_gives_no_completions() -> None:
    model = language_model()
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}>"
    question = [{"role": "user", "content": "Where are the bees?"}]
    (answer,) = model.generate_batch([question], max_new_tokens=9)
    assert answer.text == model.generate(question, max_new_tokens=9).text
    assert model.generate_batch([]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": [["one"]]}, "The number of references is 1; it must be 4, one for each prompt"),
        ({"seeds": [1, 2]}, "The number of seeds is 2; it must be 4, one for each prompt"),
        ({"batch_size": 0}, "batch_size is 0; it must be 1 or more"),
        ({"top_p": 2.0}, "top_p is 2.0"),
    ],
)
def test_wrong_numbers_of_references_or_seeds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        language_model().generate_batch(PROMPTS, **options)
