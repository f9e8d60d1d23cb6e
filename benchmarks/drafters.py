"""Drafter study: all drafters, alone and combined, on answers, summaries and chat.

python -m benchmarks.drafters
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Annotated

import typer

from antiphon.pipelines.benchmark.facts import machine_caption, run_facts
from antiphon.pipelines.benchmark.samples import SHIPPED, RecordedSample, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.bench import AsJsonToo, NumDraftTokens, Rounds, is_lossless
from antiphon.pipelines.cli.options import Device, Precision
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program

BITA = ("bita", "blend+bita", "blend+bita+lookahead")
"""Methods that need BiTA's weights, which exist for SmolLM2 only."""

METHODS = ("hf-lookup", "copying", "trie", "recycling", "lookahead", "blend", "blend+lookahead")
SUMMARIZE = "Summarize the passages above in a few sentences."
COLUMNS = {
    "method": "method",
    "tokens_per_step": "tokens\nper step",
    "rows_per_step": "draft rows\nper step",
    "speedup": "× greedy",
    "identical": "identical",
}


def drafters(
    file: Annotated[
        str,
        typer.Argument(help=f"Recorded questions with references as JSONL, or a bundled file: {' or '.join(SHIPPED)}."),
    ] = "python-docs",
    model: Annotated[str, typer.Option("--model", "-m", help="smollm2, reader, a folder or a hub name.")] = "smollm2",
    method: Annotated[
        list[str] | None,
        typer.Option(help="As in `antiphon bench speed`; may be repeated.", show_default="all that support the model"),
    ] = None,
    dtype: Precision = "auto",
    num_draft_tokens: NumDraftTokens = "32",
    passages: Annotated[int, typer.Option(help="Number of passages in the prompts of answers and summaries.")] = 3,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of prompts of each kind.")] = 6,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens per output.")] = 96,
    rounds: Rounds = 1,
    device: Device = None,
    as_json: AsJsonToo = False,
) -> None:
    """Compare steps and time of all drafters, alone and combined, on answers, summaries and chat.

    Answers and summaries are over the passages of recorded questions; chat has nothing to copy from. The exit code is
    1 if one of our outputs in float32 differs from greedy decoding.
    """
    from antiphon.pipelines.benchmark.jobs import make_jobs
    from antiphon.pipelines.benchmark.methods import methods_by_name, parse_num_draft_tokens
    from antiphon.pipelines.benchmark.speed import measure_speed
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    console.quiet_libraries()
    methods = methods_by_name(method or methods_of(model), parse_num_draft_tokens(num_draft_tokens))
    kinds = samples_of(file, limit)
    loaded = load_language_model(model, device=device, dtype=dtype_named(dtype))
    facts = run_facts("drafters", model, loaded.model, program="python -m benchmarks.drafters")
    facts |= {
        "file": file,
        "rows": num_draft_tokens,
        "rounds": rounds,
        "samples": {},
        "passages": passages,
        "max_new_tokens": max_new_tokens,
        "sets": {},
    }
    for kind, samples in kinds.items():
        jobs = make_jobs(loaded, samples, limit=max_new_tokens, passages=0 if kind == "chat" else passages)
        with console.progress_bars() as report:
            found = measure_speed(loaded, jobs, methods, limit=max_new_tokens, rounds=rounds, report=report).as_dict()
        facts["sets"][kind], facts["samples"][kind] = found, len(jobs)
        console.out.print(
            result_table(
                f"{kind}: {len(jobs)} prompts, {model}, {facts['dtype']}, {num_draft_tokens} draft tokens",
                COLUMNS,
                found,
            )
        )
    console.out.print(machine_caption(facts), style="dim")
    if as_json:
        typer.echo(json.dumps(facts))
    if not is_lossless(facts["dtype"], chain.from_iterable(facts["sets"].values())):
        raise typer.Exit(1)


def methods_of(model: str) -> tuple[str, ...]:
    """Return the methods compared by default: all that support the model."""
    return (*METHODS, *(BITA if model == "smollm2" else ()), "auto")


def samples_of(file: str, limit: int) -> dict[str, list[RecordedSample]]:
    """Select samples to answer, to summarize and to chat, evenly spread over their files.

    Args:
        file: Recorded questions, or a bundled file.
        limit: Maximum number of samples of each kind.

    Raises:
        ValueError: the file has no sample of the task "rag".
    """
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


app = program(drafters)

if __name__ == "__main__":
    app()
