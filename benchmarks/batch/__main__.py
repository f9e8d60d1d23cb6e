"""Batch benchmark: many prompts at once by our engine and by OpenVINO GenAI.

python -m benchmarks.batch
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from antiphon.pipelines.benchmark.facts import run_facts
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.bench import Passages, Rounds, is_lossless
from antiphon.pipelines.cli.options import AsJson, EngineOption, Precision, Task
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program

COLUMNS = {
    "method": "method",
    "tokens_per_s": "tokens/s",
    "x_plain": "× plain",
    "x_best": "× best\nbaseline",
    "seconds": "seconds",
    "identical": "identical",
}


def batch(
    file: Annotated[
        str, typer.Argument(help=f"Recorded answers as JSONL, or a bundled file: {' or '.join(SHIPPED)}.")
    ] = "python-docs",
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder or a hub name.")] = "reader",
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A drafter of `LanguageModel.generate_batch`; openvino-genai, or openvino-genai-lookup:5 (5 draft "
            "tokens): its pipeline for continuous batching; may be repeated.",
            show_default="nothing, blend, openvino-genai, and its lookup of 3, 5 and 10",
        ),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Number of prompts decoded together.")] = 8,
    limit: Annotated[int, typer.Option(min=1, help="Number of prompts.")] = 8,
    passages: Passages = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens per output.")] = 128,
    rounds: Rounds = 3,
    dtype: Precision = "auto",
    engine: EngineOption = "auto",
    task: Task = None,
    as_json: AsJson = False,
) -> None:
    """Decode batches of prompts by our engine and by OpenVINO GenAI in turn; times include prefill.

    The exit code is 1 if one of our outputs in float32 differs from decoding without drafts.
    """
    from antiphon.pipelines.benchmark.jobs import make_jobs
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
    from benchmarks.batch.measure import batch_figures, measure_batches
    from benchmarks.batch.methods import batch_methods_by_name

    console.quiet_libraries()
    methods = batch_methods_by_name(method)
    samples = load_samples(file, task=task, limit=limit)
    loaded = load_language_model(model, device="cpu", dtype=dtype_named(dtype), engine=engine)
    jobs = make_jobs(loaded, samples, limit=max_new_tokens, passages=passages)
    with console.progress_bars() as report:
        measured = measure_batches(
            loaded, jobs, methods, at_once=at_once, limit=max_new_tokens, rounds=rounds, report=report
        )
    facts = run_facts("batch", model, loaded.model, program="python -m benchmarks.batch")
    facts |= {"engine": loaded.engine.name, "file": Path(file).name}
    facts |= {"task": task, "samples": len(samples), "at_once": at_once, "passages": passages, "rounds": rounds}
    facts |= {"prompt_tokens": round(sum(len(job.prompt) for job in jobs) / len(jobs), 1)}
    facts |= {"max_new_tokens": max_new_tokens, "methods": batch_figures(measured)}
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        what = f"{facts['model']}, {facts['dtype']}, ours on {facts['engine']}"
        console.out.print(result_table(f"{len(samples)} prompts, {at_once} at once: {what}", COLUMNS, facts["methods"]))
    if not is_lossless(facts["dtype"], facts["methods"]):
        raise typer.Exit(1)


app = program(batch)

if __name__ == "__main__":
    app()
