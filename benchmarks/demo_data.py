"""40 questions about the demo's documents, 30 of which the documents answer, and an index of all the documents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.progress import Progress
from antiphon.pipelines.data.demo import demo_documents

QUESTIONS = Path(__file__).with_name("demo_questions.jsonl")


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question about the demo's documents.

    Attributes:
        answer: Sentences of the documents that answer the question best; None if the documents do
            not answer it.
        source: File that contains the sentences; None without an answer.
    """

    question: str
    answer: str | None
    source: str | None = None


def demo_questions() -> list[DemoQuestion]:
    """Load the questions."""
    return [DemoQuestion(**json.loads(line)) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]


def demo_index(progress: Progress | None = None) -> Path:
    """Build the index of the documents unless it exists; return its folder. See `build_index` for ``progress``."""
    from antiphon.retrieval import build_index

    folder = cache_folder() / "demo-index"
    build_index(demo_documents(), folder, embedder="minilm", progress=progress)
    return folder
