"""vLLM without drafts, with its own drafts, and with Antiphon's.

python -m benchmarks.vllm
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.accel.processor import processor_name
from antiphon.accel.progress import Progress
from antiphon.pipelines.benchmark.facts import command_line, instruction_sets
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.bench import AsJsonToo
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program
from benchmarks.vllm.engines import BOTH, HEAD, OURS, PLAIN, SPECULATION

if TYPE_CHECKING:
    from benchmarks.vllm.engines import VLLMSettings

BATCHES = (1, 4, 16)
COLUMNS = {
    "method": "method",
    "tokens_per_step": "tokens\nper step",
    "drafted": "drafted,\nper request",
    "accepted": "accepted",
    "tokens_per_s": "tokens/s",
    "x_plain": "× plain",
    "x_plain_least": "least",
    "x_plain_whole": "× plain,\nend to end",
    "x_lookup": "× best\nlookup",
    "x_lookup_least": "least",
    "x_lookup_most": "most",
    "identical": "identical",
}

Sources = Annotated[
    str,
    typer.Option(
        help="Where our drafts come from: passages, which are in the prompt too; prediction, each sample's "
        "references, which are not; answers, the references of all samples, which are not either."
    ),
]


def vllm(
    file: Annotated[
        str, typer.Argument(help=f"Recorded questions as JSONL, or a bundled file: {' or '.join(SHIPPED)}.")
    ] = "python-docs",
    model: Annotated[str, typer.Option("--model", "-m", help="smollm2, reader, a folder or a hub name.")] = "smollm2",
    python: Annotated[
        Path, typer.Option(help="Python interpreter of an environment with vLLM and Antiphon.", show_default="this one")
    ] = Path(sys.executable),
    method: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(SPECULATION)}; may be repeated.", show_default="all")
    ] = None,
    head: Annotated[
        str, typer.Option(help=f"Folder of an EAGLE head of the model, for the methods {HEAD} and {BOTH}.")
    ] = "",
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Number of concurrent requests; may be repeated.", show_default="1, 4 and 16"),
    ] = None,
    sources: Sources = "passages",
    passages: Annotated[int, typer.Option(help="Number of passages in the prompt.")] = 5,
    limit: Annotated[int, typer.Option(min=1, help="Minimum number of prompts per batch size.")] = 6,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens per output.")] = 128,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    window: Annotated[int, typer.Option(help="Maximum tokens of a prompt and its output.")] = 2048,
    threads: Annotated[int | None, typer.Option(help="Threads per engine.", show_default="vLLM's choice")] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Use torch.compile; otherwise vLLM runs eagerly.")
    ] = False,
    warm_up: Annotated[int, typer.Option(min=0, help="Number of prompts decoded once before, unmeasured.")] = 1,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often everything is measured, each time by new engines; medians are shown.")
    ] = 1,
    as_json: AsJsonToo = False,
) -> None:
    """Compare vLLM without drafts, with its own draft methods, and with Antiphon, on the same prompts in turn.

    Every method has its own engine (2 GB with SmolLM2), all at the same time, and decodes no prompt twice. Ctrl-C shows
    the complete batch sizes. The exit code is 1 if one of our outputs in float32 differs from vLLM without drafts.
    """
    from antiphon.accel.models.bundled import resolve_model
    from antiphon.pipelines.cli.preparation import load_language_model
    from benchmarks.vllm.engines import VLLMSettings
    from benchmarks.vllm.measure import vllm_jobs

    console.quiet_libraries()
    methods = method or [name for name in SPECULATION if head or name not in (HEAD, BOTH)]
    batches = batch or list(BATCHES)
    samples = load_samples(file, limit=sum(max(limit, each) for each in batches) + warm_up)
    jobs = vllm_jobs(load_language_model(model), samples, sources, passages)
    # SmolLM2's KV cache needs a gigabyte for 45,000 tokens in bfloat16: more requests must not be preempted.
    place: dict[str, Any] = {"threads": threads, "eager": not compiled, "gigabytes": 1 if max(batches) <= 16 else 2}
    settings = VLLMSettings(str(python), resolve_model(model), dtype, window, max(batches), head=head, **place)
    how: dict[str, Any] = {"batches": batches, "limit": max_new_tokens, "least": limit, "warm_up": warm_up}
    with console.progress_bars() as report:
        version, figures = _measure_rounds(rounds, methods, settings, jobs, report=report, **how)
    done = max(rows[0]["rounds"] for rows in figures.values())
    facts: dict[str, Any] = {
        "kind": "vllm",
        "command": command_line("python -m benchmarks.vllm"),
        "model": model,
        "rounds": done,
    }
    facts |= {"dtype": dtype, "vllm": version, "processor": processor_name(), "units": instruction_sets()}
    facts |= {"file": Path(file).name, "sources": sources, "passages": passages, "max_new_tokens": max_new_tokens}
    _show(facts | {"batches": figures}, as_json=as_json)


def _measure_rounds(
    rounds: int, methods: Sequence[str], settings: VLLMSettings, jobs: Sequence[Any], *, report: Progress, **how: Any
) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """Return vLLM's version, and the figures of each batch size; each round has new engines, in another order.

    After KeyboardInterrupt, the batch sizes that were measured in some round are returned.
    """
    from benchmarks.vllm.engines import open_engines
    from benchmarks.vllm.measure import figures_with_ratios, measure_vllm, median_figures

    measured: dict[str, list[list[dict[str, Any]]]] = {str(each): [] for each in how["batches"]}
    version = ""
    for number in range(rounds):
        first = number % len(methods)
        try:
            with open_engines([*methods[first:], *methods[:first]], settings) as engines:
                version = engines[0].version
                figures = measure_vllm(engines, jobs, report=report, **how)
        except KeyboardInterrupt:  # while engines start or end
            break
        for at_once, done in measured.items():
            if own := [one for one in figures if str(one.at_once) == at_once]:
                done.append(sorted(figures_with_ratios(own), key=lambda row: methods.index(row["method"])))
        if len(figures) < len(methods) * len(measured):  # interrupted
            break
    if not any(measured.values()):
        raise KeyboardInterrupt
    return version, {at_once: median_figures(done) for at_once, done in measured.items() if done}


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    what = f"{facts['model']}, {facts['dtype']}, vLLM {facts['vllm']}, {facts['sources']}"
    for at_once, rows in facts["batches"].items():
        rounds = f", medians of {rows[0]['rounds']} rounds" if rows[0]["rounds"] > 1 else ""
        title = f"{rows[0]['requests']} requests, {at_once} at once{rounds}: {what}"
        console.out.print(result_table(title, COLUMNS, rows))
    if as_json:
        typer.echo(json.dumps(facts))
    if facts["dtype"] == "float32" and not all(is_lossless(rows) for rows in facts["batches"].values()):
        raise typer.Exit(1)


def is_lossless(rows: list[dict[str, Any]]) -> bool:
    """Return whether all our outputs equal those of vLLM without drafts."""
    return all(row["identical"] == 1 for row in rows if row["method"] in (PLAIN, OURS, BOTH))


app = program(vllm)

if __name__ == "__main__":
    app()
