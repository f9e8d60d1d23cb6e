"""What a model answers to the forty questions about the demo's documents, beside what was wanted."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.pipelines.data.demo import demo_questions
from antiphon.pipelines.prompt import DECLINED
from antiphon.pipelines.rag import Rag


def examine(rag: Rag) -> Iterator[str]:
    """Ask each question of an index of the demo's documents; the lines of a Markdown list, as they come."""
    steps = tokens = 0
    for number, one in enumerate(demo_questions(), start=1):
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
