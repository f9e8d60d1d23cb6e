"""The command that says where answers are lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.pipelines.benchmark.machine import command_line
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Device
from antiphon.pipelines.data.span_questions import CORPORA, span_questions
from antiphon.pipelines.rendering.tables import figure_table

if TYPE_CHECKING:
    from antiphon.pipelines.benchmark.answers import AnswerTrace

ANSWERS = {
    "corpus": "corpus",
    "answerable": "answer-\nable",
    "unanswerable": "not",
    "cut": "lost in\nchunking",
    "recall@3": "recall\nat 3",
    "recall@5": "recall\nat 5",
    "recall@10": "recall\nat 10",
    "lost_retrieval": "lost in\nretrieval",
    "lost_prompt": "lost in\nprompt",
    "lost_reader": "lost by\nreader",
    "right": "right",
    "wrongly_declined": "answerable\ndeclined",
    "declined": "others\ndeclined",
}


def answers(
    folder: Annotated[
        Path, typer.Argument(help="Folders of documents, and questions.jsonl; by default those that ship.")
    ] = CORPORA,
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder, or none: only search.")] = (
        "reader"
    ),
    k: Annotated[int, typer.Option("--k", "-k", help="How many passages the model reads.")] = 5,
    embedder: Annotated[str, typer.Option(help="minilm, bge-m3, a folder or a hub name.")] = "minilm",
    corpus: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "auto",
    show: Annotated[bool, typer.Option("--show", help="Print every question, and where its answer was lost.")] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Ask questions about documents that nobody trained for, and count where the answers are lost."""
    from antiphon.pipelines.benchmark.answers import answer_figures, trace_answers
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    console.quiet_libraries()
    questions = [one for one in span_questions(folder) if corpus in (None, one.corpus)]
    reader = None if model == "none" else load_language_model(model, device=device, dtype=dtype_named(dtype))
    with console.progress_bars() as bar:
        done: list[AnswerTrace] = []

        def report(one: AnswerTrace) -> None:
            done.append(one)
            bar("Asking", len(done), len(questions))
            if show:
                typer.echo(_line(one))

        traced = trace_answers(questions, folder, embedder=embedder, language_model=reader, k=k, report=report)
    rows = answer_figures(traced)
    if as_json:
        facts = {"kind": "answers", "command": command_line(), "model": model, "embedder": embedder, "k": k}
        typer.echo(json.dumps(facts | {"corpora": rows}))
        return
    columns = {key: heading for key, heading in ANSWERS.items() if key in rows[0]}
    console.out.print(figure_table(f"{len(traced)} questions, {k} passages, {model}", columns, rows))


def _line(one: AnswerTrace) -> str:
    wanted = " / ".join(one.asked.spans) or "-"
    place = "cut" if one.is_cut else f"at {one.rank}" if one.rank else "not found"
    verdict = "right" if one.is_right else "declined" if one.is_declined else one.lost or "answered"
    said = f"\n  said   {one.text}" if one.text is not None else ""
    return f"{one.asked.corpus}: {one.asked.question}\n  wanted {wanted} ({place})\n  {verdict}{said}"
