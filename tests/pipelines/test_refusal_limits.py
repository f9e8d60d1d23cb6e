"""The extractive model says in one sentence why it does not answer a question of a kind that it cannot answer."""

from __future__ import annotations

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag
from antiphon.pipelines.passage_selection import SelectedPrompt
from antiphon.pipelines.prompt import REFUSAL
from antiphon.pipelines.question_text import SUMMARY_LIMIT
from antiphon.pipelines.request_plan import _explain_refusal
from antiphon.retrieval import Retriever


def refused(question: str, *, given: str = REFUSAL, **generation: object) -> str:
    """Return the beginning of an answer that begins with ``given``, once the refusal of a question is explained."""
    selected = SelectedPrompt(None, {"response_prefix": given, "stop": "\n\n"})  # type: ignore[arg-type]
    return str(_explain_refusal(selected, question, generation).options["response_prefix"])


def test_a_question_for_a_summary_is_refused_with_the_reason(reader: LanguageModel, retriever: Retriever) -> None:
    plan = Rag(retriever, reader, k=2).plan("Please summarise the documents.")
    assert plan.response_prefix == f"{REFUSAL} {SUMMARY_LIMIT}"
    assert plan.quotes == ()
    answer = Rag(retriever, reader, k=2).ask("Please summarise the documents.", max_new_tokens=5)
    assert answer.text.startswith(plan.response_prefix)
    assert answer.is_refusal


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("Wie kann ich die Datei löschen?", "the question seems to be German"),
        ("How do I pause a queue and how do I resume it?", "ask one after the other"),
        (f"{'Since the worker stopped again, ' * 15}why is the job stalled?", "ask a shorter one"),
    ],
)
def test_a_refusal_says_what_may_be_the_reason(question: str, reason: str) -> None:
    assert refused(question).startswith(f"{REFUSAL} ")
    assert reason in refused(question)
    assert refused(question, given="[1] It is quoted.") == "[1] It is quoted.", "an answer is an answer"


def test_an_ordinary_refusal_and_prescribed_forms_are_unchanged() -> None:
    assert refused("Who is the director?") == REFUSAL
    assert refused("Summarise the documents.", given="{", json_schema={}) == "{"
    assert refused("Summarise the documents.", given="Yes", response_prefix="Yes") == "Yes"
