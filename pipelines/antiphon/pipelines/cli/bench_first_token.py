"""The command that times the first piece of an answer."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from antiphon.pipelines.benchmark.machine import command_line
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Device
from antiphon.pipelines.rendering.tables import figure_table

FIRST = {"unread_ms": "passages new, ms", "read_ms": "read before, ms", "sooner": "times sooner"}


def first_token(
    model: Annotated[str, typer.Option("--model", "-m", help="reader, or a folder of one.")] = "reader",
    k: Annotated[int, typer.Option("--k", "-k", help="How many passages the model reads.")] = 5,
    limit: Annotated[int, typer.Option(help="So many of the demo's questions.")] = 10,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "auto",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Time the first piece of an answer, where its passages are new and where they were read for another question."""
    from antiphon.pipelines.benchmark.first_token import first_piece_figures, measure_first_pieces
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model, open_demo
    from antiphon.pipelines.data.demo import demo_questions

    console.quiet_libraries()
    questions = [one.question for one in demo_questions() if one.answer][:limit]
    language_model = load_language_model(model, device=device, dtype=dtype_named(dtype))
    figures = first_piece_figures(measure_first_pieces(questions, open_demo(device=device), language_model, k))
    if as_json:
        facts = {"kind": "first token", "command": command_line(), "model": model, "k": k, "questions": len(questions)}
        typer.echo(json.dumps(facts | figures))
        return
    console.out.print(figure_table(f"{len(questions)} questions, {k} passages, {model}", FIRST, [figures]))
