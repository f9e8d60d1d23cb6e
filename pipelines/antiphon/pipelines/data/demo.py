"""The demo's documents, which ship with the package, their index, and forty questions about them.

Thirty of the questions are answered by the documents and ten are not. Runs no language model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

from antiphon.pipelines.progress import Progress

DOCUMENTS = Path(__file__).parent / "python-docs"
"""The folder of the documents."""

QUESTIONS = Path(__file__).parent / "demo_questions.jsonl"


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question, and the sentences of the documents that answer it best; None where the documents do not."""

    question: str
    answer: str | None
    source: str | None = None


def demo_questions(path: Path = QUESTIONS) -> list[DemoQuestion]:
    """The forty questions."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [DemoQuestion(**json.loads(line)) for line in lines]


def demo_documents() -> list[Path]:
    """The text files of the Python documentation, without their licence."""
    return sorted(path for path in DOCUMENTS.glob("*.txt") if path.name != "LICENSE.txt")


def demo_index_folder() -> Path:
    """Where the index of these files is kept, in the user's cache."""
    return Path(user_cache_dir("antiphon")) / "demo-index"


def demo_index(progress: Progress | None = None) -> Path:
    """The folder of the index of the documents, made where it is not there yet; see `build_index` for ``progress``."""
    from antiphon.retrieval import build_index

    folder = demo_index_folder()
    build_index(demo_documents(), folder, embedder="minilm", progress=progress)
    return folder
