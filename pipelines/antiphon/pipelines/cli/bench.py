"""The benchmark commands: figures for people, and with --json one line for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.accel.drafting.drafters import DRAFTERS, make_drafter
from antiphon.pipelines.benchmark.loading import load_tokenizer
from antiphon.pipelines.benchmark.machine import command_line
from antiphon.pipelines.benchmark.replay import replay_samples
from antiphon.pipelines.benchmark.samples import load_samples
from antiphon.pipelines.cli import (
    bench_answers,
    bench_batch,
    bench_drafters,
    bench_first_token,
    bench_index,
    bench_speed,
    bench_vllm,
    console,
)
from antiphon.pipelines.cli.options import AsJson, Device, EngineOption, Limit, Task
from antiphon.pipelines.rendering.tables import FigureTable, figure_table

if TYPE_CHECKING:
    from antiphon.pipelines.benchmark.drafting import DraftingReport

app = typer.Typer(no_args_is_help=True, help="Measure what drafting saves and what it costs.")
for command in (
    bench_speed.speed,
    bench_speed.floor,
    bench_speed.record,
    bench_speed.page,
    bench_index.index,
    bench_drafters.drafters,
    bench_answers.answers,
    bench_vllm.vllm,
    bench_first_token.first_token,
    bench_batch.batch,
):
    app.command()(command)


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(help="Recorded answers: JSONL with id, task, query, references, prompt, response.")
    ],
    tokenizer: Annotated[str, typer.Option(help="The tokenizer's folder, or its name on the hub.")],
    drafter: Annotated[str | None, typer.Option(help=f"{', '.join(DRAFTERS)}; by default each of them.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(help="Maximum number of draft tokens to verify per step.")] = 32,
    task: Task = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Count the forwards that recorded answers would have taken with a drafter: no model is run."""
    factories = {drafter: make_drafter(drafter)} if drafter else DRAFTERS
    samples = load_samples(file, task=task, limit=limit)
    loaded = load_tokenizer(tokenizer)
    figures = [
        {"drafter": name, "rows": num_draft_tokens, "samples": len(samples)}
        | replay_samples(samples, loaded, factory, num_draft_tokens).as_dict()
        for name, factory in factories.items()
    ]
    if as_json:
        facts = {"kind": "replay", "command": command_line(), "file": file.name, "task": task, "rows": num_draft_tokens}
        typer.echo(json.dumps(facts | {"drafters": figures} | (figures[0] if drafter else {})))
        return
    console.out.print(figure_table(f"{len(samples)} answers, at most {num_draft_tokens} draft tokens", REPLAY, figures))


@app.command()
def drafting(as_json: AsJson = False) -> None:
    """Measure drafting itself: milliseconds per step, per 1,000 tokens read, and the seconds of the import."""
    from antiphon.pipelines.benchmark.drafting import measure_drafting

    report = measure_drafting()
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
        return
    console.out.print(drafting_table(report))
    console.out.print(f"import antiphon.accel: {report.import_seconds:.3f} s beyond torch and transformers")


@app.command()
def exactness(
    file: Annotated[
        Path | None,
        typer.Argument(help="Recorded answers, as for replay; without a file, the demo's documents and questions."),
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder or a hub name.")] = "reader",
    dtype: Annotated[
        list[str] | None, typer.Option(help="May be repeated.", show_default="float32 and bfloat16")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The longest output, in tokens.")] = 64,
    num_draft_tokens: Annotated[int, typer.Option(help="Maximum number of draft tokens to verify per step.")] = 32,
    task: Task = None,
    limit: Annotated[int | None, typer.Option(help="Only so many prompts.")] = None,
    passages: Annotated[
        int | None,
        typer.Option(
            help="Ask the questions anew over so many of their passages, 0 for none.", show_default="as recorded"
        ),
    ] = None,
    deterministic: Annotated[bool, typer.Option(help="Decode in deterministic mode too.")] = True,
    engine: EngineOption = "torch",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compare drafted outputs with plain ones, certify them all, and show transformers' own noise beside them.

    On another engine than torch its outputs without drafts are compared as well, in place of that noise and of the
    deterministic mode.

    The exit code is 1 where a promise is broken: other tokens than without drafts in float32, a regret that rounding
    does not explain, or a draft that changed a deterministic output.
    """
    from antiphon.accel.engines.selection import parse_engine_name
    from antiphon.pipelines.benchmark.cases import load_cases
    from antiphon.pipelines.benchmark.exactness import measure_exactness
    from antiphon.pipelines.cli.preparation import STAGES, dtype_named, load_language_model

    console.quiet_libraries()
    dtypes = [dtype_named(name) for name in dtype or ("float32", "bfloat16")]
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "num_draft_tokens": num_draft_tokens,
        "deterministic": deterministic,
    }
    options["engine"] = parse_engine_name(engine)
    results = []
    for each in dtypes:
        language_model = load_language_model(model, device=device, dtype=each)
        with console.progress_bars(STAGES) as report:
            cases = load_cases(language_model, file, task=task, limit=limit, passages=passages, progress=report)
            results.append(measure_exactness(language_model, cases, report=report, **options))
    figures = [result.as_dict() for result in results]
    if as_json:
        typer.echo(
            json.dumps({"model": model, "max_new_tokens": max_new_tokens, "rows": num_draft_tokens, "dtypes": figures})
        )
    else:
        console.out.print(exactness_table(model, figures))
        for figure in figures:
            if figure["deterministic_refused"]:
                console.out.print(figure["deterministic_refused"], style="dim")
    if not all(result.is_kept for result in results):
        raise typer.Exit(1)


@app.command()
def retrieval(
    file: Annotated[Path, typer.Argument(help="Recorded answers, as for replay: their queries and references.")],
    embedder: Annotated[str, typer.Option(help="minilm, bge-m3, a folder or a hub name.")] = "minilm",
    task: Task = None,
    limit: Limit = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps, ...")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well each question finds its own passages among those of all questions."""
    from antiphon.pipelines.benchmark.finding import measure_finding
    from antiphon.retrieval import resolve

    console.quiet_libraries()
    samples = load_samples(file, task=task, limit=limit)
    figures = [finding.as_dict() for finding in measure_finding(samples, resolve(embedder, device))]
    if as_json:
        typer.echo(json.dumps({"embedder": embedder, "questions": len(samples), "methods": figures}))
        return
    console.out.print(figure_table(f"{len(samples)} questions, {embedder}", RETRIEVAL, figures))


REPLAY = {
    "drafter": "drafter",
    "tokens_per_step": "tokens per step",
    "rows_per_step": "rows per step",
    "steps": "steps",
    "tokens": "tokens",
    "draft_ms_per_step": "drafting, ms per step",
}
RETRIEVAL = {name: name for name in ("method", "recall@5", "mrr", "ndcg@10")}


def drafting_table(report: DraftingReport) -> FigureTable:
    """One row for each drafter: what a step and the index of its references cost, by the length of these."""
    columns = {"drafter": "drafter"}
    columns |= {f"draft_ms_{size}": f"step\n{size:,}" for size in report.sizes}
    columns |= {f"build_ms_{size}": f"index\n{size:,}" for size in report.sizes}
    figures = [cost.as_dict() for cost in report.costs]
    title = f"Milliseconds per step of {report.rows} rows, and per 1,000 tokens of index, by reference tokens"
    return figure_table(title, columns | {"build_ratio": "index\nratio"}, figures)


EXACTNESS = {
    "prompts": "prompts",
    "tokens": "tokens drafted",
    "drafted_identical": "drafted as plain, share",
    "drafted_identical_to_undrafted": "drafted as undrafted by the engine, share",
    "undrafted_identical": "undrafted by the engine as plain, share",
    "eager_identical": "plain by another attention as plain, share",
    "deterministic_identical": "deterministic: drafted as undrafted, share",
    "deterministic_identical_to_plain": "deterministic: drafted as plain, share",
    "worst_ulp_plain": "worst regret, plain, ulp",
    "worst_ulp_drafted": "worst regret, drafted, ulp",
    "worst_ulp_undrafted": "worst regret, undrafted by the engine, ulp",
    "worst_ulp_eager": "worst regret, other attention, ulp",
    "worst_ulp_steady": "worst regret, deterministic, ulp",
    "above_zero_plain": "tokens with a regret, plain",
    "above_zero_drafted": "tokens with a regret, drafted",
    "kept": "promise kept",
}


def exactness_table(model: str, figures: list[dict[str, Any]]) -> FigureTable:
    """One row for each figure and one column for each dtype."""
    columns = {"": "figure"} | {figure["dtype"]: figure["dtype"] for figure in figures}
    rows = [{"": heading} | {figure["dtype"]: figure[key] for figure in figures} for key, heading in EXACTNESS.items()]
    return figure_table(f"Exactness of {model}", columns, rows)
