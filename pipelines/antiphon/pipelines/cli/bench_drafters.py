"""The command that compares all drafters on answers, summaries and chat."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Annotated

import typer

from antiphon.pipelines.benchmark.machine import facts_of
from antiphon.pipelines.benchmark.page import machine_line
from antiphon.pipelines.benchmark.samples import SHIPPED, RecordedSample, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.bench_speed import is_kept
from antiphon.pipelines.cli.options import AsJson, Device, Precision
from antiphon.pipelines.rendering.tables import figure_table

BITA = ("bita", "blend+bita", "blend+bita+lookahead")
"""Those with BiTA's weights, which are SmolLM2's."""

METHODS = ("hf-lookup", "copying", "trie", "recycling", "lookahead", "blend", "blend+lookahead")
SUMMARIZE = "Summarize the passages above in a few sentences."
COLUMNS = {
    "method": "method",
    "tokens_per_step": "tokens\na step",
    "rows_per_step": "draft rows\na step",
    "speedup": "× greedy",
    "identical": "same text",
}


def drafters(
    file: Annotated[
        str, typer.Argument(help=f"Recorded questions with references: JSONL; or {' or '.join(SHIPPED)}.")
    ] = "python-docs",
    model: Annotated[str, typer.Option("--model", "-m", help="smollm2, reader, a folder or a hub name.")] = "smollm2",
    method: Annotated[
        list[str] | None,
        typer.Option(help="As in `bench speed`; may be repeated.", show_default="all that draft for this model"),
    ] = None,
    dtype: Precision = "auto",
    rows: Annotated[str, typer.Option(help="Draft rows in one step, at most; auto: as many as pay.")] = "32",
    passages: Annotated[int, typer.Option(help="Passages that are read, and summarised.")] = 3,
    limit: Annotated[int, typer.Option(min=1, help="So many texts of each kind, at most.")] = 6,
    max_new_tokens: Annotated[int, typer.Option(help="The longest output, in tokens.")] = 96,
    rounds: Annotated[int, typer.Option(help="How often everything is decoded; medians are shown.")] = 1,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Decode answers, summaries and chat by every drafter, alone and together, and compare steps and time.

    Answers and summaries are over the passages of recorded questions; chat has nothing to copy from. The exit code is
    1 where a model in float32 said something else than plain decoding.
    """
    from antiphon.pipelines.benchmark.jobs import jobs_of
    from antiphon.pipelines.benchmark.methods import methods_named, rows_named
    from antiphon.pipelines.benchmark.speed import measure_speed
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    console.quiet_libraries()
    methods = methods_named(method or methods_of(model), rows_named(rows))
    kinds = samples_of(file, limit)
    loaded = load_language_model(model, device=device, dtype=dtype_named(dtype))
    facts = facts_of("drafters", model, loaded.model) | {"file": file, "rows": rows, "rounds": rounds}
    facts |= {"samples": {}, "passages": passages, "max_new_tokens": max_new_tokens, "sets": {}}
    for kind, samples in kinds.items():
        jobs = jobs_of(loaded, samples, limit=max_new_tokens, passages=0 if kind == "chat" else passages)
        with console.progress_bars() as report:
            found = measure_speed(loaded, jobs, methods, limit=max_new_tokens, rounds=rounds, report=report).as_dict()
        facts["sets"][kind], facts["samples"][kind] = found, len(jobs)
        console.out.print(
            figure_table(f"{kind}: {len(jobs)} texts, {model}, {facts['dtype']}, {rows} rows", COLUMNS, found)
        )
    console.out.print(machine_line(facts), style="dim")
    if as_json:
        typer.echo(json.dumps(facts))
    if not is_kept(facts["dtype"], chain.from_iterable(facts["sets"].values())):
        raise typer.Exit(1)


def methods_of(model: str) -> tuple[str, ...]:
    """What is compared where no method is named: all that drafts for this model."""
    return (*METHODS, *(BITA if model == "smollm2" else ()), "auto")


def samples_of(file: str, limit: int) -> dict[str, list[RecordedSample]]:
    """Samples to answer, to summarise and to chat about, spread over their files."""
    recorded = load_samples(file)
    asked = _spread([each for each in recorded if each.task == "rag"], limit)
    summarized = _spread([each for each in recorded if each.task == "summarization"], limit)
    if not asked:
        raise ValueError(f"{file} has no sample of the task rag; give recorded questions with references.")
    summarized = summarized or [replace(each, task="summarization") for each in asked]
    summarized = [replace(each, query=SUMMARIZE) for each in summarized]
    return {"rag": asked, "summarization": summarized, "chat": _spread(load_samples("genres"), limit)}


def _spread(samples: list[RecordedSample], limit: int) -> list[RecordedSample]:
    return samples[:: max(len(samples) // limit, 1)][:limit]
