"""The command `antiphon demo`: indexes bundled documents, answers questions about them, and compares four programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer
from rich.table import Table
from rich.text import Text

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.models.bundled import BUNDLED
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.console import Stopwatch
from antiphon.pipelines.cli.index_report import index_documents, show_index
from antiphon.pipelines.cli.options import MODEL_HELP, EngineOption
from antiphon.pipelines.cli.preparation import load_language_model
from antiphon.pipelines.data.demo import DOCUMENTS, DemoTask, demo_documents, demo_tasks
from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.pipelines.rendering.tables import result_table

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.benchmark.methods import Job, Method
    from antiphon.pipelines.benchmark.speed import MethodFigures, Speed
    from antiphon.pipelines.rag import Rag

QUESTIONS = ("Is Python named after the snake?", "list.pop(0) is slow, what should I use for a FIFO?")
MAX_NEW_TOKENS = 100
"""Maximum number of generated tokens of an answer, whether timed or not."""

ROUNDS = 3
"""How often each program does each task; the medians are compared."""

RACER = "smollm2"
"""The bundled model that is timed. Quoting, the default of `ask`, cannot be timed, because it decodes nothing."""

DEMO_HELP = f"The model that is timed, and that answers unless it is smollm2: {MODEL_HELP}"

BUSY_LOAD, BUSY_SPREAD = 0.3, 0.25
"""Limits of the load per processor before the start, and of the spread of a program's rounds:
beyond a limit, other programs disturb the measurement."""


def demo(
    model: Annotated[str, typer.Option("--model", "-m", help=DEMO_HELP)] = RACER,
    engine: EngineOption = "auto",
) -> None:
    """Index the bundled documents, answer questions about them, and time whole answers of four programs."""
    is_same = run_demo(model, engine=engine)
    if model in BUNDLED and not is_same:
        raise typer.Exit(1)


def run_demo(
    model: str,
    *,
    paths: Sequence[Path] | None = None,
    folder: Path | None = None,
    engine: str = "auto",
) -> bool:
    """Index, answer, cite and compare the programs; return whether all programs generated the same tokens.

    Args:
        model: Name, folder or hub name of the model whose speed is compared. If it is a bundled
            model, the extractive model answers the questions.
        paths: Documents; default the bundled tutorial of Python.
        folder: Folder of the index; default in the user's cache.
    """
    from antiphon.pipelines.extractive_model import ExtractiveModel
    from antiphon.pipelines.rag import Rag
    from antiphon.retrieval import Retriever

    load = psutil.getloadavg()[0] / (psutil.cpu_count() or 1)
    folder = folder or cache_folder() / "demo-tutorial"
    paths = paths or [path for path in demo_documents() if path.name.startswith("tutorial-")]
    show_index(index_documents(paths, folder, embedder="minilm", yes=True))
    retriever = Retriever.open(folder)
    # Outputs are guaranteed to be identical in float32 only; a large model may not fit into memory in float32.
    dtype: Any = "float32" if model in BUNDLED else "auto"
    language_model = load_language_model(model, dtype=dtype, engine=engine)
    writes = model not in BUNDLED
    console.out.rule(f"1. {model if writes else 'Quotes'} answer from these documents")
    for question in QUESTIONS:
        _ask(Rag(retriever, language_model if writes else ExtractiveModel()), question)
    tasks = demo_tasks()
    console.out.print()
    console.out.rule(f"2. {model} does three tasks that copy from a text")
    measured = run_race(language_model, [_job(language_model, task) for task in tasks], MAX_NEW_TOKENS)
    ours = [run.tokens for run in measured.methods[-1].rounds[0]]
    for task, tokens in zip(tasks, ours, strict=True):
        text = str(language_model.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()
        note = "" if text == task.answer else " (this is not the expected answer)"
        console.out.print(Text(f"\n{task.title}{note}", style="bold"))
        console.out.print(Text(sanitize(text)))
    console.out.print()
    console.out.print(race_table(measured))
    is_same = all([run.tokens for run in runs] == ours for figures in measured.methods for runs in figures.rounds)
    console.out.print("The text is identical in all programs." if is_same else "The texts differ.", style="bold")
    console.out.print(factors(measured))
    if note := disturbance(measured, load):
        console.out.print(note, style="yellow")
    return is_same


def _ask(rag: Rag, question: str) -> None:
    console.out.print()
    console.out.print(Text(sanitize(question), style="bold"))
    stream = rag.stream(question, max_new_tokens=MAX_NEW_TOKENS)
    console.show_stream(stream, Stopwatch())
    console.show_citations(stream.answer, root=DOCUMENTS)


def _job(language_model: LanguageModel, task: DemoTask) -> Job:
    from antiphon.pipelines.benchmark.methods import Job

    tokenized = language_model.tokenize(task.messages if language_model.takes_messages else task.prompt)
    return Job(tokenized.tokens, (task.reference,))


def run_race(language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> Speed:
    """Decode the jobs with each program in turn, `ROUNDS` times.

    Args:
        language_model: The model. Transformers runs its torch module; Antiphon runs its selected engine.
    """
    from antiphon.accel.drafting.drafters import Blend, Nothing
    from antiphon.pipelines.benchmark.methods import AntiphonGenerate, TransformersGenerate
    from antiphon.pipelines.benchmark.speed import measure_speed

    greedy, lookup, plain, drafts = PROGRAMS
    methods: list[Method] = [
        TransformersGenerate(greedy),
        TransformersGenerate(lookup),
        AntiphonGenerate(plain, Nothing, None, language_model.options.engine),
        AntiphonGenerate(drafts, Blend, None, language_model.options.engine),
    ]
    with console.progress_bars() as report:
        return measure_speed(language_model, jobs, methods, limit=limit, rounds=ROUNDS, report=report)


PROGRAMS = {
    "hf-greedy": "transformers, greedy",
    "hf-lookup": "transformers, prompt lookup",
    "nothing": "Antiphon without drafts",
    "blend": "Antiphon",
}
"""The programs in the order of the race, with the names that are shown."""

COLUMNS = {
    "program": "program",
    "tokens": "tokens",
    "first": "first token s",
    "whole": "whole answers s",
    "speedup_whole": "x greedy",
    "tokens_per_step": "tokens/ step",
    "is_same": "same text",
}


def race_table(measured: Speed) -> Table:
    """Return a table with one line per program; seconds are summed over the tasks."""
    rows = [
        figures
        | {
            "program": PROGRAMS[figures["method"]],
            "is_same": figures["identical"] == 1,
            "first": f"{figures['prefill_seconds']:.2f}",
            "whole": f"{whole_seconds(method):.2f}",
        }
        for figures, method in zip(measured.as_dict(), measured.methods, strict=True)
    ]
    return result_table("", COLUMNS, rows, is_open=True)


def whole_seconds(figures: MethodFigures) -> float:
    """Return the end-to-end seconds of all tasks together; each task counts with its median over the rounds."""
    return figures.total(lambda run: run.seconds)


def factors(measured: Speed) -> str:
    """Return a sentence with the end-to-end speed-ups: by the engine, by drafts, and by both."""
    greedy, lookup, plain, drafts = map(whole_seconds, measured.methods)
    return (
        f"Engine: {greedy / plain:.2f} times as fast as transformers' greedy decoding. Drafts: {plain / drafts:.2f} "
        f"times as fast as the same engine without them. Together {greedy / drafts:.2f}, and {lookup / drafts:.2f} "
        "compared with transformers' prompt lookup."
    )


def disturbance(measured: Speed, load: float) -> str:
    """Return a note if other programs disturbed the measurement, else "".

    Args:
        load: Load average per processor before the demo.
    """
    spreads = []
    for method in measured.methods:
        seconds = [sum(run.seconds for run in runs) for runs in method.rounds]
        spreads.append((max(seconds) - min(seconds)) / median(seconds))
    if load < BUSY_LOAD and max(spreads) < BUSY_SPREAD:
        return ""
    return (
        f"This machine was busy: a load of {load:.1f} per processor before the start, and rounds of one program that "
        f"differ by up to {max(spreads):.0%}. Repeat the demo on an idle machine before you rely on these factors."
    )
