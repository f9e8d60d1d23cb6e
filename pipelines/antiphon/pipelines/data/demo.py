"""The demo's bundled documents, their index, and 40 questions, of which the documents answer 30."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from antiphon.accel.cache_folder import cache_folder
from antiphon.pipelines.progress import Progress

DOCUMENTS = Path(__file__).parent / "python-docs"
"""Folder of the documents."""

QUESTIONS = Path(__file__).parent / "demo_questions.jsonl"


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question of the demo.

    Attributes:
        answer: Sentences of the documents that answer it best; None if the documents do not answer it.
        source: File that contains the sentences; None without an answer.
    """

    question: str
    answer: str | None
    source: str | None = None


def demo_questions(path: Path = QUESTIONS) -> list[DemoQuestion]:
    """Load the questions."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [DemoQuestion(**json.loads(line)) for line in lines]


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
