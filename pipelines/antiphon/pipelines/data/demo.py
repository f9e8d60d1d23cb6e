"""The demo's data: documents and three tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DOCUMENTS = Path(__file__).parent / "python-docs"
"""Folder of the documents."""

TASKS = Path(__file__).parent / "demo_tasks.jsonl"


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
