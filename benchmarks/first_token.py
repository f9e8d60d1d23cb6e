"""Time to the first token of an answer, for passages that are new to the model and for passages with a kept KV cache.

python -m benchmarks.first_token
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.benchmark.facts import command_line
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Device
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.rag import Rag, Searcher
    from antiphon.retrieval import Passage

REMEMBERED = 32_768
"""Tokens of passages whose KV cache is kept; more than the passages of one question have."""

FIRST = {"unread_ms": "new passages, ms", "read_ms": "cached passages, ms", "sooner": "× faster"}


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds to the first token of one question's answer.

    Attributes:
        question: The question.
        new: Time if the passages are new.
        cached: Time if the passages were part of an earlier question.
    """

    question: str
    new: float
    cached: float


def measure_first_tokens(
    questions: Sequence[str], retriever: Searcher, language_model: LanguageModel, k: int, **generation: Any
) -> list[FirstToken]:
    """Time each question twice: over passages that an earlier question used, and over new passages.

    Args:
        questions: The questions.
        retriever: Finds the passages.
        language_model: Model that answers.
        k: Number of passages per question.
        **generation: Options of `Rag.stream`.
    """
    from antiphon.pipelines.rag import Rag

    measured = []
    for question, another in zip(questions, [*questions[1:], *questions[:1]], strict=True):
        fixed = _FixedPassages(tuple(retriever.search(question, k)))
        rag = Rag(fixed, language_model, k=k, passage_cache_tokens=REMEMBERED)
        _seconds(rag, another, generation)
        cached = _seconds(rag, question, generation)
        new = _seconds(Rag(fixed, language_model, k=k), question, generation)
        measured.append(FirstToken(question, new, cached))
    return measured


def first_token_figures(measured: Sequence[FirstToken]) -> dict[str, float]:
    """Return the medians in milliseconds, and their ratio."""
    new, cached = (median(getattr(one, name) for one in measured) for name in ("new", "cached"))
    return {"unread_ms": round(1e3 * new, 1), "read_ms": round(1e3 * cached, 1), "sooner": round(new / cached, 2)}


def _seconds(rag: Rag, question: str, generation: dict[str, Any]) -> float:
    started = perf_counter()
    stream = rag.stream(question, **generation)
    next(stream, "")
    seconds = perf_counter() - started
    stream.close()
    return seconds


@dataclass(frozen=True, slots=True)
class _FixedPassages:
    """A searcher that always returns the same passages, at no cost."""

    passages: tuple[Passage, ...]

    def search(self, question: str, k: int = 5) -> list[Passage]:
        return list(self.passages[:k])


def first_token(
    model: Annotated[str, typer.Option("--model", "-m", help="reader, or a folder of one.")] = "reader",
    k: Annotated[int, typer.Option("--k", "-k", help="Number of passages in the prompt.")] = 5,
    limit: Annotated[int, typer.Option(help="Number of the demo's questions.")] = 10,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "auto",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure the time to the first token over new passages, and over passages of an earlier question."""
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
    from antiphon.retrieval import Retriever
    from benchmarks.demo_data import demo_index, demo_questions

    console.quiet_libraries()
    questions = [one.question for one in demo_questions() if one.answer][:limit]
    language_model = load_language_model(model, device=device, dtype=dtype_named(dtype))
    figures = first_token_figures(
        measure_first_tokens(questions, Retriever.open(demo_index(), device=device), language_model, k)
    )
    if as_json:
        facts = {"kind": "first token", "command": command_line("python -m benchmarks.first_token"), "model": model}
        typer.echo(json.dumps(facts | {"k": k, "questions": len(questions)} | figures))
        return
    console.out.print(result_table(f"{len(questions)} questions, {k} passages, {model}", FIRST, [figures]))


app = program(first_token)

if __name__ == "__main__":
    app()
