"""Questions written by hand about passages of the corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
WRITTEN_QUESTIONS = DATA / "written.jsonl"
"""Written questions about the training pages."""

HELD_OUT_QUESTIONS = DATA / "held_out.jsonl"
"""Written questions about held-out pages."""


@dataclass(frozen=True, slots=True)
class WrittenQuestion:
    """A question about a passage.

    Attributes:
        page: Folder and file name of the page, without suffix.
        question: The question.
        sentences: Sentences that answer it; empty if the passage does not.
        place: Sentences that identify the passage.
    """

    page: str
    question: str
    sentences: tuple[str, ...]
    place: tuple[str, ...]


def load_written_questions(path: Path = WRITTEN_QUESTIONS) -> list[WrittenQuestion]:
    """Load questions from JSON lines with page, question, answer and place.

    Raises:
        ValueError: a line is not a question; the message has its number.
    """
    return list(_read(path))


def _read(path: Path) -> Iterator[WrittenQuestion]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            one = json.loads(line)
            yield WrittenQuestion(one["page"], one["question"], tuple(one["answer"]), tuple(one["place"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number} is no question ({error!r}); it needs page, question, answer and place."
            ) from error
