"""The demo's data: documents, their index, 40 questions (30 of which the documents answer) and three tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.progress import Progress

DOCUMENTS = Path(__file__).parent / "python-docs"
"""Folder of the documents."""

QUESTIONS = Path(__file__).parent / "demo_questions.jsonl"
TASKS = Path(__file__).parent / "demo_tasks.jsonl"


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question of the demo.

    Attributes:
        answer: Sentences of the documents that answer the question best; None if the documents do
            not answer it.
        source: File that contains the sentences; None without an answer.
    """

    question: str
    answer: str | None
    source: str | None = None


def demo_questions(path: Path = QUESTIONS) -> list[DemoQuestion]:
    """Load the questions."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [DemoQuestion(**json.loads(line)) for line in lines]


@dataclass(frozen=True, slots=True)
class DemoTask:
    """A task whose answer mostly copies from a text: an edit, an extraction, or an answer that quotes.

    Attributes:
        messages: Two worked examples, then the task.
        reference: The text that the task is about.
        answer: The right answer.
    """

    title: str
    messages: tuple[dict[str, str], ...]
    reference: str
    answer: str

    @property
    def prompt(self) -> str:
        """The messages as one text, for models without a chat template."""
        return "\n\n".join(message["content"] for message in self.messages) + "\n\n"


def demo_tasks() -> list[DemoTask]:
    """Load the tasks; the bundled `smollm2` solves all of them."""
    rows = map(json.loads, TASKS.read_text(encoding="utf-8").splitlines())
    return [DemoTask(row["title"], tuple(row["messages"]), row["reference"], row["answer"]) for row in rows]


def demo_documents() -> list[Path]:
    """Return the text files of the Python documentation, without the licence."""
    return sorted(path for path in DOCUMENTS.glob("*.txt") if path.name != "LICENSE.txt")


def demo_index_folder() -> Path:
    """Return the folder of the documents' index in the user's cache."""
    return cache_folder() / "demo-index"


def demo_index(progress: Progress | None = None) -> Path:
    """Build the index of the documents unless it exists; return its folder. See `build_index` for ``progress``."""
    from antiphon.retrieval import build_index

    folder = demo_index_folder()
    build_index(demo_documents(), folder, embedder="minilm", progress=progress)
    return folder
