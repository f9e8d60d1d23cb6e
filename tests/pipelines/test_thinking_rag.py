"""Thinking in answers from documents: off by default, not cited, not stored, no part of later turns."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines import Chat, Rag, SessionStore
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.console import Stopwatch
from antiphon.pipelines.cli.preparation import note_missing_switch
from antiphon.pipelines.question import Question
from antiphon.retrieval import HashEmbedder, Retriever
from tests.accel.scripted_torch_model import scripted_model
from tests.accel.thinking_models import thinking_tokenizer
from tests.tiny import EOS, tiny_model

pytestmark = pytest.mark.slow

QUESTION = "How do bees live?"
QUOTED = "Bees live in colonies"
OUTPUT = f"<think>\n{QUOTED}, honey keeps for years.\n</think>\n\n{QUOTED}."


def rag_writing(text: str, folder: Path, **options: Any) -> Rag:
    """Return a pipeline whose model writes this text after the prompt of the question with thinking."""
    tokenizer, retriever = thinking_tokenizer("decides"), Retriever.open(folder)
    any_model = LanguageModel(tiny_model(vocab_size=len(tokenizer), max_position_embeddings=1023), tokenizer)
    prompt = Rag(retriever, any_model, k=1).plan(Question(QUESTION), thinking=True, max_new_tokens=120).tokenized.count
    script = [*tokenizer.encode(text, add_special_tokens=False), EOS]
    return Rag(retriever, LanguageModel(scripted_model(script, prompt, len(tokenizer)), tokenizer), k=1, **options)


def test_the_prompt_ends_the_thinking_unless_it_is_asked_for(index_folder: Path) -> None:
    rag = rag_writing(OUTPUT, index_folder)

    def prompt(**options: Any) -> str:
        tokenized: Any = rag.plan(Question(QUESTION), max_new_tokens=120, **options).tokenized
        return str(tokenized.text)

    closed = "<think>\n\n</think>\n\n"
    assert prompt().endswith(closed)
    assert not prompt(thinking=True).endswith(closed)
    assert not prompt(template_variables={"enable_thinking": True}).endswith(closed)
    assert prompt(template_variables={"date": "today"}).endswith(closed)


def test_thinking_is_not_cited_and_not_stored(index_folder: Path, tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "sessions.db", embedder=HashEmbedder())
    rag = rag_writing(OUTPUT, index_folder, sessions=store)
    answer = rag.ask(QUESTION, thinking=True, max_new_tokens=120)
    assert answer.reasoning == f"{QUOTED}, honey keeps for years."
    assert answer.text == f"{QUOTED}."
    assert all(citation.end <= len(answer.text) for citation in answer.citations)
    assert answer.as_dict()["reasoning"] == answer.reasoning
    assert [session.answer for session in store.similar(QUESTION)] == [answer.text]


def test_a_later_turn_neither_shows_nor_drafts_from_earlier_thinking(index_folder: Path) -> None:
    chat = Chat(rag_writing(OUTPUT, index_folder))
    chat.ask(QUESTION, thinking=True, max_new_tokens=120)
    plan = chat.stream("And their honey?", max_new_tokens=8).plan
    tokenized: Any = plan.tokenized
    assert "honey keeps for years." not in tokenized.text.partition("Question: And their honey?")[0]
    assert not any("honey keeps for years" in str(reference) for reference in plan.references)


def test_an_answer_that_ended_in_the_thinking_is_no_refusal_and_says_so(index_folder: Path) -> None:
    answer = rag_writing(OUTPUT, index_folder).ask(QUESTION, thinking=True, max_new_tokens=20)
    assert (answer.text, answer.ended_in_thinking, answer.is_refusal) == ("", True, False)
    assert "thinking=False" in answer.caption


def test_the_terminal_shows_thinking_as_one_dim_line_on_standard_error(
    index_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = rag_writing(OUTPUT, index_folder).stream(QUESTION, thinking=True, max_new_tokens=120)
    console.show_stream(stream, Stopwatch())
    shown = capsys.readouterr()
    assert shown.out.strip() == f"{QUOTED}."
    assert f"Thought: {QUOTED}, honey" in shown.err


@pytest.mark.parametrize(("template", "is_noted"), [("decides", False), ("opened", True), ("none", True)])
def test_an_option_without_effect_is_noted(template: str, is_noted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    note_missing_switch(LanguageModel(tiny_model(), thinking_tokenizer(template)), False)
    assert ("--no-thinking has no effect" in capsys.readouterr().err) is is_noted
