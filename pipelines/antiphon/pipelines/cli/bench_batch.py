"""The command that times many texts at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.pipelines.benchmark.machine import facts_of
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, EngineOption, Precision, Task
from antiphon.pipelines.rendering.tables import figure_table

COLUMNS = {
    "method": "method",
    "tokens_per_s": "tokens/s",
    "x_plain": "× plain",
    "x_best": "× best\nother",
    "seconds": "seconds",
    "identical": "same text",
}


def batch(
    file: Annotated[
        str, typer.Argument(help=f"Recorded answers: JSONL, see `bench record`; or {' or '.join(SHIPPED)}.")
    ] = "python-docs",
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder or a hub name.")] = "reader",
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A drafter, by `LanguageModel.generate_batch`; openvino-genai, and openvino-genai-lookup:5 (so many "
            "tokens guessed at once), by its pipeline for many texts; may be repeated.",
            show_default="nothing, blend, openvino-genai, and its lookup of 3, 5 and 10",
        ),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="So many prompts are decoded together.")] = 8,
    limit: Annotated[int, typer.Option(min=1, help="So many prompts.")] = 8,
    passages: Annotated[
        int | None,
        typer.Option(help="Ask over so many references in the model's own form; 0: none.", show_default="as recorded"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The longest output, in tokens.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is decoded; medians are shown.")] = 3,
    dtype: Precision = "auto",
    engine: EngineOption = "auto",
    task: Task = None,
    as_json: AsJson = False,
) -> None:
    """Decode several prompts at once by our engine and by OpenVINO GenAI, in turn, prompts included in the time.

    The exit code is 1 where ours in float32 said something else than without drafts.
    """
    from antiphon.pipelines.benchmark.batch_methods import batch_methods_named
    from antiphon.pipelines.benchmark.batch_speed import batch_figures, measure_batches
    from antiphon.pipelines.benchmark.jobs import jobs_of
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    console.quiet_libraries()
    methods = batch_methods_named(method)
    samples = load_samples(file, task=task, limit=limit)
    loaded = load_language_model(model, device="cpu", dtype=dtype_named(dtype), engine=engine)
    jobs = jobs_of(loaded, samples, limit=max_new_tokens, passages=passages)
    with console.progress_bars() as report:
        measured = measure_batches(
            loaded, jobs, methods, at_once=at_once, limit=max_new_tokens, rounds=rounds, report=report
        )
    facts = facts_of("batch", model, loaded.model) | {"engine": loaded.engine.name, "file": Path(file).name}
    facts |= {"task": task, "samples": len(samples), "at_once": at_once, "passages": passages, "rounds": rounds}
    facts |= {"prompt_tokens": round(sum(len(job.prompt) for job in jobs) / len(jobs), 1)}
    facts |= {"max_new_tokens": max_new_tokens, "methods": batch_figures(measured)}
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        what = f"{facts['model']}, {facts['dtype']}, ours on {facts['engine']}"
        console.out.print(figure_table(f"{len(samples)} texts, {at_once} at once: {what}", COLUMNS, facts["methods"]))
    if not is_kept(facts["dtype"], facts["methods"]):
        raise typer.Exit(1)


def is_kept(dtype: str, methods: Iterable[Mapping[str, Any]]) -> bool:
    """Whether every text of ours is that without drafts, where it has to be."""
    return dtype != "float32" or all(each["identical"] == 1 for each in methods if not each["is_peer"])
