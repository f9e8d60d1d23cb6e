"""The bundled extractive model answers easy questions, which too much training on documentation would break."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag
from antiphon.pipelines.prompt import REFUSAL
from antiphon.retrieval import Retriever
from tests.pipelines.quoting import quotes_of

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

EGGS = "A queen lays as many as two thousand eggs on a summer's day."
COLONY = "Bees live in colonies of up to sixty thousand, and each colony has one queen."
HONEY = "Honey keeps for years because it holds little water."


@pytest.fixture(scope="module")
def reader(reader_folder: Path) -> LanguageModel:
    return LanguageModel.from_pretrained(reader_folder, dtype=torch.float32, engine="torch")


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("How many eggs can a queen bee lay on a day in summer?", EGGS),
        ("How many eggs does a queen lay in a day?", EGGS),
        ("How long does honey keep?", HONEY),
        ("How long can honey be kept?", HONEY),
        ("How many bees live in a colony?", COLONY),
        ("How many bees are there in one colony?", COLONY),
    ],
)
def test_an_easy_question_is_answered_with_the_sentence_that_says_it(
    reader: LanguageModel, retriever: Retriever, question: str, sentence: str
) -> None:
    answer = Rag(retriever, reader, k=3).ask(question, max_new_tokens=40)
    [quote] = quotes_of(answer.text)
    assert quote.sentence == sentence
    assert sentence in answer.passages[quote.number - 1].text


@pytest.mark.parametrize("question", ["What is royal jelly?", "Who made the first movable frame hive?"])
def test_a_question_that_no_sentence_answers_is_declined(
    reader: LanguageModel, retriever: Retriever, question: str
) -> None:
    assert Rag(retriever, reader, k=3).ask(question, max_new_tokens=40).text == REFUSAL
