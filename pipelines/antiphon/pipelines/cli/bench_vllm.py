"""The command that compares ways to draft within vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.pipelines.benchmark.machine import command_line, processor, units
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.benchmark.vllm_engines import OURS, PLAIN, SPECULATION
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson
from antiphon.pipelines.rendering.tables import figure_table

BATCHES = (1, 4, 16)
COLUMNS = {
    "method": "method",
    "tokens_per_step": "tokens\na step",
    "drafted": "drafted,\na request",
    "accepted": "accepted",
    "tokens_per_s": "tokens/s",
    "x_plain": "× plain",
    "x_plain_whole": "× plain,\nprompts in",
    "x_ngram": "× best\nngram",
    "x_suffix": "× suffix",
    "identical": "same text",
}


def vllm(
    file: Annotated[str, typer.Argument(help=f"Recorded questions: JSONL; or {' or '.join(SHIPPED)}.")] = "python-docs",
    model: Annotated[str, typer.Option("--model", "-m", help="smollm2, reader, a folder or a hub name.")] = "smollm2",
    python: Annotated[
        Path, typer.Option(help="The interpreter of an environment with vLLM and Antiphon.", show_default="this one")
    ] = Path(sys.executable),
    method: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(SPECULATION)}; may be repeated.", show_default="all")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Requests at once; may be repeated.", show_default="1, 4 and 16")
    ] = None,
    sources: Annotated[
        str,
        typer.Option(
            help="What ours is given: passages, which stand in the prompt too; prediction, each sample's references, "
            "which do not; answers, the references of all samples, which do not either."
        ),
    ] = "passages",
    passages: Annotated[int, typer.Option(help="How many stand in a prompt.")] = 5,
    limit: Annotated[
        int, typer.Option(min=1, help="Prompts for each batch size; as many as it has at once or more.")
    ] = 6,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The longest output, in tokens.")] = 128,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    window: Annotated[int, typer.Option(help="The longest prompt with its output, in tokens.")] = 2048,
    threads: Annotated[
        int | None, typer.Option(help="What an engine multiplies with.", show_default="as vLLM chooses")
    ] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="With torch.compile; else vLLM runs eagerly.")] = False,
    warm_up: Annotated[int, typer.Option(min=0, help="Prompts that are decoded before, and do not count.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Decode the same prompts in vLLM without drafts, with its own ways to draft, and with Antiphon, in turn.

    Every method has an engine of its own, all at the same time: some 2 GB of memory each with SmolLM2. No prompt is
    asked twice. The exit code is 1 where ours in float32 said something else than vLLM without drafts.
    """
    from antiphon.pipelines.benchmark.vllm_engines import VLLMSettings, opened_engines
    from antiphon.pipelines.benchmark.vllm_speed import measure_vllm, vllm_jobs, with_ratios
    from antiphon.pipelines.cli.preparation import load_language_model
    from antiphon.pipelines.models.embedded import resolve_model

    console.quiet_libraries()
    methods, batches = method or list(SPECULATION), batch or list(BATCHES)
    samples = load_samples(file, limit=sum(max(limit, each) for each in batches) + warm_up)
    jobs = vllm_jobs(load_language_model(model), samples, sources, passages)
    place: dict[str, Any] = {"threads": threads, "eager": not compiled}
    settings = VLLMSettings(str(python), resolve_model(model), dtype, window, max(batches), **place)
    with console.progress_bars() as report, opened_engines(methods, settings) as engines:
        figures = measure_vllm(
            engines, jobs, batches=batches, limit=max_new_tokens, least=limit, warm_up=warm_up, report=report
        )
    facts: dict[str, Any] = {"kind": "vllm", "command": command_line(), "model": model, "dtype": dtype}
    facts |= {"vllm": engines[0].version, "processor": processor(), "units": units(), "file": Path(file).name}
    facts |= {"sources": sources, "passages": passages, "max_new_tokens": max_new_tokens, "batches": {}}
    facts["batches"] |= {str(each): with_ratios([one for one in figures if one.at_once == each]) for each in batches}
    _show(facts, as_json=as_json)


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    what = f"{facts['model']}, {facts['dtype']}, vLLM {facts['vllm']}, {facts['sources']}"
    for at_once, rows in facts["batches"].items():
        console.out.print(figure_table(f"{rows[0]['requests']} requests, {at_once} at once: {what}", COLUMNS, rows))
    if as_json:
        typer.echo(json.dumps(facts))
    if facts["dtype"] == "float32" and not all(is_kept(rows) for rows in facts["batches"].values()):
        raise typer.Exit(1)


def is_kept(rows: list[dict[str, Any]]) -> bool:
    """Whether every text of ours is that of vLLM without drafts."""
    return all(row["identical"] == 1 for row in rows if row["method"] in (PLAIN, OURS))
