"""The bundled extractive model with earlier answers and turns: the same text, with fewer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.pipelines import Chat, Rag, SessionStore
from antiphon.pipelines.prompt import prompt_format
from antiphon.retrieval import HashEmbedder, Retriever

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

QUESTION = "How many eggs can a queen bee lay on a day in summer?"
PARAPHRASE = "How many eggs does a queen lay in a day?"
FOLLOW_UPS = ("How long does honey keep?", "How many bees live in a colony?")


@pytest.fixture(scope="module")
def reader(reader_folder: Path) -> LanguageModel:
    return LanguageModel.from_pretrained(
        reader_folder, dtype=torch.float32, engine="torch", num_draft_tokens=32, recycling=False
    )


def test_the_answer_to_a_paraphrase_saves_steps_without_changing_the_text(
    reader: LanguageModel, retriever: Retriever, tmp_path: Path
) -> None:
    store = SessionStore(tmp_path / "s.sqlite", embedder=HashEmbedder(), similarity=0.6)
    rag = Rag(retriever, reader, k=3, sessions=store, prompt=prompt_format(reader))  # all passages in one prompt
    options: dict[str, Any] = {"max_new_tokens": 40}
    empty = rag.ask(QUESTION, sessions=False, **options)
    rag.ask(PARAPHRASE, **options)
    warm = rag.ask(QUESTION, **options)
    plain = rag.ask(QUESTION, sessions=False, drafter="nothing", **options)
    assert warm.text == empty.text == plain.text
    assert warm.steps.tokens_per_step > empty.steps.tokens_per_step > 1


def test_a_complete_question_has_the_same_answer_alone_and_in_a_conversation(
    reader: LanguageModel, retriever: Retriever
) -> None:
    rag = Rag(retriever, reader, k=2)
    chat = Chat(rag)
    for question in (QUESTION, *FOLLOW_UPS):
        alone, turn = rag.ask(question, max_new_tokens=40), chat.ask(question, max_new_tokens=40)
        assert (turn.text, turn.citations, turn.usage) == (alone.text, alone.citations, alone.usage)
        assert not turn.is_refusal
