"""The forty questions about the demo's documents, thirty that they answer and ten that they do not, and the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from antiphon.accel import LanguageModel
from antiphon.pipelines.cli.demo import documents, index_folder
from antiphon.pipelines.cli.preparation import index_documents
from antiphon.pipelines.prompt import DECLINED
from antiphon.pipelines.rag import Rag

FILE = Path(__file__).parent / "demo_questions.jsonl"


@dataclass(frozen=True, slots=True)
class Examined:
    """A question, and the sentences that answer it best; None where the documents do not."""

    question: str
    answer: str | None
    source: str | None = None


def read_examination(path: Path = FILE) -> list[Examined]:
    """The forty questions."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Examined(**json.loads(line)) for line in lines]


def demo_index() -> Path:
    """The folder of the index of the demo's documents, made where it is not there yet."""
    folder = index_folder()
    index_documents(documents(), folder, embedder="minilm")
    return folder


def examine(language_model: LanguageModel, *, k: int) -> Iterator[str]:
    """Ask each question of an index of the demo's documents; the lines of a Markdown list, as they come."""
    from antiphon.retrieval import Retriever

    rag = Rag(Retriever.open(demo_index()), language_model, k=k)
    steps = tokens = 0
    for number, one in enumerate(read_examination(), start=1):
        answer = rag.ask(one.question)
        steps += answer.steps.steps - 1
        tokens += answer.steps.tokens - 1
        yield f"{number}. **{one.question}**"
        yield from (f"   > {line}" for line in answer.text.splitlines())
        yield f"   Wanted: {one.answer or DECLINED}"
        if one.answer and not any(_holds(passage.text, one.answer) for passage in answer.passages):
            yield "   (not among the passages found)"
    yield f"\n{tokens / max(1, steps):.2f} tokens per step after the prefill."


def _holds(text: str, sentences: str) -> bool:
    """Whether the text holds where the sentences begin, however the lines break."""
    return " ".join(sentences.split())[:60] in " ".join(text.split())
