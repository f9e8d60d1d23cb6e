"""The command `antiphon bench speed`: decoding speed of several programs and drafters on the same prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.benchmark.facts import machine_caption, run_facts, run_title
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import Device, Limit, Precision, Task
from antiphon.pipelines.rendering.tables import result_table

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.benchmark.methods import Job, Method

app = typer.Typer(no_args_is_help=True, help="Measure the decoding speed on this machine.")

Answers = Annotated[str, typer.Argument(help=f"Recorded answers as JSONL, or a bundled file: {' or '.join(SHIPPED)}.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help="hf-lookup, hf-lookup-n3, or a drafter: blend, blend:16 (at most 16 draft tokens), blend@openvino (on "
        "that engine), ...",
        show_default="all",
    ),
]
Passages = Annotated[
    int | None,
    typer.Option(
        help="Build new prompts over this many references, in the model's prompt format; 0: the question alone.",
        show_default="the recorded prompts",
    ),
]
Rounds = Annotated[int, typer.Option(help="How often everything is decoded; medians are shown.")]
WarmUp = Annotated[int, typer.Option(help="Number of samples decoded once before, unmeasured.")]
NewTokens = Annotated[int, typer.Option(help="Maximum number of new tokens per output.")]
NumDraftTokens = Annotated[str, typer.Option(help="Maximum number of draft tokens per step; auto: chosen by cost.")]
AsJsonToo = Annotated[bool, typer.Option("--json", help="Also print one line of JSON, at the end.")]

SPEED = {
    "method": "method",
    "tokens_per_s": "tokens/s",
    "speedup": "× greedy",
    "speedup_lookup": "× lookup",
    "speedup_whole": "× greedy,\nend to end",
    "speedup_best": "× best\nbaseline",
    "speedup_best_whole": "× best baseline,\nend to end",
    "identical": "identical",
}
STEPS = {
    "method": "method",
    "tokens_per_step": "tokens",
    "rows_per_step": "draft rows",
    "ms_per_step": "ms",
    "draft_ms_per_step": "drafting\nms",
    "first_token_ms": "first token\nms",
    "prefill_seconds": "prefill s",
}


@app.command()
def speed(
    file: Answers = "python-docs",
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder or a hub name.")] = "reader",
    method: Methods = None,
    dtype: Precision = "auto",
    num_draft_tokens: NumDraftTokens = "auto",
    task: Task = None,
    limit: Limit = None,
    max_new_tokens: NewTokens = 256,
    passages: Passages = None,
    rounds: Rounds = 3,
    warm_up: WarmUp = 1,
    device: Device = None,
    as_json: AsJsonToo = False,
) -> None:
    """Compare the decoding speed of transformers and every drafter on the same prompts.

    Ctrl-C shows the figures so far. The exit code is 1 if one of our outputs in float32 differs from greedy decoding.
    """
    from antiphon.pipelines.benchmark.jobs import make_jobs
    from antiphon.pipelines.benchmark.methods import NAMES, methods_by_name, parse_num_draft_tokens
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    methods = methods_by_name(method or NAMES, parse_num_draft_tokens(num_draft_tokens))
    samples = load_samples(file, task=task, limit=limit)
    loaded = load_language_model(model, device=device, dtype=dtype_named(dtype))
    jobs = make_jobs(loaded, samples, limit=max_new_tokens, passages=passages)
    facts = run_facts("speed", model, loaded.model) | {"file": Path(file).name, "task": task, "passages": passages}
    facts |= {"replayed": False, "rows": num_draft_tokens}
    facts |= compare_speed(loaded, jobs, methods, limit=max_new_tokens, rounds=rounds, warm_up=warm_up)
    show_speed(facts)
    if as_json:
        typer.echo(json.dumps(facts))
    raise typer.Exit(0 if is_lossless(facts["dtype"], facts["methods"]) else 1)


def compare_speed(
    language_model: LanguageModel, jobs: Sequence[Job], methods: Sequence[Method], *, limit: int, **how: Any
) -> dict[str, Any]:
    """Measure all methods with a progress bar; return their figures and the number of prompts and rounds.

    Args:
        limit: Maximum number of new tokens per job.
    """
    from antiphon.pipelines.benchmark.speed import measure_speed

    with console.progress_bars() as report:
        measured = measure_speed(language_model, jobs, methods, limit=limit, report=report, **how)
    rounds = measured.methods[0].rounds
    lengths = [len(job.prompt) for job in jobs[: len(rounds[0])]]
    return {
        "samples": len(lengths),
        "prompt_tokens": round(sum(lengths) / len(lengths), 1),
        "rounds": len(rounds),
        "max_new_tokens": limit,
        "methods": measured.as_dict(),
    }


def show_speed(facts: Mapping[str, Any]) -> None:
    """Print the tables of a measurement and its settings."""
    console.out.print(result_table(run_title(facts), SPEED, facts["methods"]))
    console.out.print(result_table("Per step, and all prefills", STEPS, facts["methods"]))
    how = "replayed" if facts["replayed"] else "the model's own outputs"
    rounds = f"medians of {facts['rounds']} rounds in turn"
    console.out.print(f"{facts['samples']} prompts, {how}, {rounds}; speed without prefill", style="dim")
    console.out.print(best_baseline(facts["methods"]), style="dim")
    console.out.print(machine_caption(facts), style="dim")


def best_baseline(methods: Iterable[Mapping[str, Any]]) -> str:
    """Return a line that names the fastest baseline, for decoding and end to end."""
    baselines = [method for method in methods if method["is_baseline"]]
    decoding = max(baselines, key=lambda method: method["speedup_best"])["method"]
    whole = max(baselines, key=lambda method: method["speedup_best_whole"])["method"]
    return f"best baseline: {decoding}" if decoding == whole else f"best baseline: {decoding}; end to end: {whole}"


def is_lossless(dtype: str, methods: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether all outputs of Antiphon equal those of greedy decoding; always True if not in float32."""
    return dtype != "float32" or all(method["identical"] == 1 for method in methods if not method["is_baseline"])
