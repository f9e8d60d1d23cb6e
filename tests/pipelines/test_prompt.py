"""Prompts: their form follows the tokenizer, and they hold the question and every passage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from antiphon.accel.tiny import byte_tokenizer
from antiphon.pipelines import chat_prompt, passage_references, plain_prompt
from antiphon.pipelines.prompt import prompt_format
from antiphon.retrieval import Passage

QUESTION = "How many queens has a colony?"


def test_a_model_with_a_chat_template_gets_messages(passages: list[Passage]) -> None:
    assert prompt_format(byte_tokenizer()) is chat_prompt
    content = chat_prompt(QUESTION, passages[:2]).content
    assert [message["role"] for message in content if not isinstance(message, str)] == ["system", "user"]


def test_a_model_without_one_gets_the_plain_text_of_the_paper(passages: list[Passage]) -> None:
    assert prompt_format(byte_tokenizer(chat=False)) is plain_prompt
    prompt = plain_prompt(QUESTION, passages[:2])
    assert prompt.content == f"docs:\n{passages[0].text}\n{passages[1].text}\nquery: {QUESTION}\nanswer:"
    assert "\nquery:" in prompt.stop  # a model that goes on would ask itself the next question


def question_of(passages: Sequence[Passage]) -> str:
    """What the user's turn says."""
    turn = chat_prompt(QUESTION, passages).content[-1]
    assert not isinstance(turn, str)
    return str(turn["content"])


def test_passages_are_numbered_by_rank_between_the_question_and_the_question(passages: list[Passage]) -> None:
    text = question_of(passages)
    places = [text.index(f"[{number}] {passage.text}") for number, passage in enumerate(passages, start=1)]
    assert places == sorted(places)
    assert text.startswith(f"Question: {QUESTION}")
    assert text.endswith(f"Question: {QUESTION}")


def test_a_passage_stands_under_its_heading_once(passages: list[Passage]) -> None:
    inside = replace(passages[0], metadata={"title": "Animals > Bees"})
    assert f"[1] Bees\n{inside.text}" in question_of([inside])
    first = replace(inside, text=f"Bees\n\n{inside.text}")
    assert f"[1] Bees\n\n{inside.text}" in question_of([first])


def test_references_are_the_texts_of_the_passages_best_first_and_each_once(passages: list[Passage]) -> None:
    again = replace(passages[0], source="copy.txt")
    assert passage_references([passages[1], passages[0], again]) == [passages[1].text, passages[0].text]
