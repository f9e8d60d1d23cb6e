"""A model's answers to the demo's 40 questions, with the expected answers and an automatic count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antiphon.pipelines.prompt import REFUSAL, is_refusal
from antiphon.pipelines.rag import Rag
from antiphon.retrieval.segmentation import sentences
from benchmarks.answers import has_words
from benchmarks.demo_data import DemoQuestion, demo_questions


def demo_answer_lines(rag: Rag) -> Iterator[str]:
    """Ask each question and yield lines of a Markdown list, then the counts.

    An answer is counted if it has 70 % of the words of an expected sentence, and again if it has 70 % of the words of
    all expected sentences: many questions expect two sentences, and the reader gives one.
    """
    said: list[tuple[DemoQuestion, str]] = []
    for number, one in enumerate(demo_questions(), start=1):
        answer = rag.ask(one.question)
        said.append((one, answer.text))
        yield f"{number}. **{one.question}**"
        yield from (f"   > {line}" for line in answer.text.splitlines())
        yield f"   Wanted: {one.answer or REFUSAL}"
        if one.answer and not any(_holds(passage.text, one.answer) for passage in answer.passages):
            yield "   (not among the passages found)"
    yield f"\n{count_right(said)}"


def count_right(said: Sequence[tuple[DemoQuestion, str]]) -> str:
    """Return one line with the numbers of answers that have the expected words, and of refusals."""
    wanted = [(one.answer, text) for one, text in said if one.answer]
    others = [text for one, text in said if not one.answer]
    some = sum(any(has_words(text, answer[slice(*span)]) for span in sentences(answer)) for answer, text in wanted)
    whole = sum(has_words(text, answer) for answer, text in wanted)
    return (
        f"{some} of {len(wanted)} answers have a wanted sentence, {whole} all of them; "
        f"{sum(is_refusal(text) for _, text in wanted)} are declined, of the others "
        f"{sum(map(is_refusal, others))} of {len(others)}."
    )


def _holds(text: str, sentences: str) -> bool:
    """Return whether the text contains the start of the sentences, ignoring line breaks."""
    return " ".join(sentences.split())[:60] in " ".join(text.split())
