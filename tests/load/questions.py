"""The questions of the load test: recorded questions with their passages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.pipelines.benchmark.samples import load_samples
from antiphon.pipelines.prompt import chat_prompt
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class Question:
    """One question as messages, and the passages in them."""

    messages: list[dict[str, Any]]
    passages: list[str]


def load_questions(path: str | Path, *, passages: int) -> list[Question]:
    """Load the questions of a file of recorded answers; see `load_samples`.

    Args:
        path: the file.
        passages: the number of passages in each prompt.
    """
    return [_question(each.query, each.references[:passages]) for each in load_samples(path)]


def _question(question: str, texts: tuple[str, ...]) -> Question:
    passages = [Passage.at(f"passage {number}", 0, text) for number, text in enumerate(texts, 1)]
    content = chat_prompt(question, passages).content
    if isinstance(content, str):
        raise TypeError(f"The prompt of {question!r} is a string; the servers need messages.")
    return Question([dict(message) for message in content], list(texts))
