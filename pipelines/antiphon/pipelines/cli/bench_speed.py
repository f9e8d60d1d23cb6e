"""The commands around speed: measure it, its floor, record answers for it, and make its page of results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.pipelines.benchmark.machine import facts_of
from antiphon.pipelines.benchmark.page import machine_line, page_of, read_results, title
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.benchmark.shapes import SHAPES
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import Device, Limit, Precision, Task
from antiphon.pipelines.rendering.tables import figure_table

Model = Annotated[
    str, typer.Option("--model", "-m", help=f"reader, smollm2, a folder, a hub name, or a shape: {', '.join(SHAPES)}.")
]
TokenizerName = Annotated[
    str | None, typer.Option("--tokenizer", help="For a shape: a folder or hub name.", show_default="SmolLM2's")
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help="hf-lookup, hf-lookup-n3, or a drafter: blend, blend:16 (so many rows), blend@openvino (by that engine), "
        "...; blend-warm, which remembers the requests before it in a round, as a program does that keeps its model; "
        "openvino-genai, and openvino-genai-lookup:8 (so many tokens guessed at once): another program on the same "
        "weights.",
        show_default="all",
    ),
]
Windows = Annotated[
    list[str] | None,
    typer.Option(
        help="Also lookahead with this window, as columns, n-gram and guesses: 7,5,7; may be repeated. Without "
        "--method nothing else but plain decoding."
    ),
]
Unread = Annotated[
    bool, typer.Option("--unread", help="Each --lookahead a second time, with no n-grams of the prompt.")
]
AsJson = Annotated[bool, typer.Option("--json", help="End with one line of JSON.")]


def speed(
    file: Annotated[
        str, typer.Argument(help=f"Recorded answers: JSONL, see `bench record`; or {' or '.join(SHIPPED)}.")
    ] = "python-docs",
    model: Model = "reader",
    method: Methods = None,
    lookahead: Windows = None,
    unread: Unread = False,
    dtype: Precision = "auto",
    num_draft_tokens: Annotated[
        str, typer.Option(help="Maximum number of draft tokens per step; auto: chosen by cost.")
    ] = "auto",
    task: Task = None,
    limit: Limit = None,
    max_new_tokens: Annotated[int, typer.Option(help="The longest output, in tokens.")] = 256,
    passages: Annotated[
        int | None,
        typer.Option(help="Ask over so many references in the model's own form; 0: none.", show_default="as recorded"),
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Give every question the references of another.")] = False,
    rounds: Annotated[int, typer.Option(help="How often everything is decoded; medians are shown.")] = 3,
    warm_up: Annotated[int, typer.Option(help="Samples that are decoded once before, and do not count.")] = 1,
    tokenizer: TokenizerName = None,
    device: Device = None,
    chart: Annotated[list[Path] | None, typer.Option(help="Draw a .png or .svg; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Decode the same prompts by transformers and by every drafter in turn, and compare their time.

    A shape has random weights and replays: its compute is real, and it says what was recorded. The exit code is 1 where
    a model in float32 said something else than plain decoding.
    """
    from antiphon.pipelines.benchmark.chart import check_chart, draw
    from antiphon.pipelines.benchmark.jobs import jobs_of
    from antiphon.pipelines.benchmark.loading import load_model_or_shape
    from antiphon.pipelines.benchmark.methods import compared
    from antiphon.pipelines.benchmark.speed import measure_speed
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    console.quiet_libraries()
    for path in chart or ():
        check_chart(path)
    methods = compared(method, num_draft_tokens, lookahead or (), unread=unread)
    samples = load_samples(file, task=task, limit=limit)
    place: dict[str, Any] = {"device": device, "dtype": dtype_named(dtype)}
    loaded = load_model_or_shape(model, load_language_model, tokenizer=tokenizer, **place)
    asked: dict[str, Any] = {"passages": passages, "shuffled": shuffle, "replayed": model in SHAPES}
    jobs = jobs_of(loaded, samples, limit=max_new_tokens, **asked)
    with console.progress_bars() as report:
        measured = measure_speed(
            loaded, jobs, methods, limit=max_new_tokens, rounds=rounds, warm_up=warm_up, report=report
        )
    facts = facts_of("speed", model, loaded.model) | {"file": Path(file).name, "task": task, "samples": len(samples)}
    facts |= asked | {"prompt_tokens": round(sum(len(job.prompt) for job in jobs) / len(jobs), 1)}
    facts |= {
        "max_new_tokens": max_new_tokens,
        "rows": num_draft_tokens,
        "rounds": rounds,
        "methods": measured.as_dict(),
    }
    _show_speed(facts)
    for path in chart or ():
        draw(facts["methods"], path, title(facts))
    if as_json:
        typer.echo(json.dumps(facts))
    if not is_kept(facts["dtype"], facts["methods"]):
        raise typer.Exit(1)


def floor(
    model: Model = "llama-2-7b",
    dtype: Precision = "auto",
    rows: Annotated[int, typer.Option(help="Measure steps of 1, 2, 4, ... and so many rows.")] = 128,
    context: Annotated[int, typer.Option(help="Measure them after so many tokens.")] = 1024,
    tokenizer: TokenizerName = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compare what a step takes, by its rows, with reading weights and cache once at the device's copy rate."""
    from antiphon.pipelines.benchmark.floor import ROWS, measure_floor
    from antiphon.pipelines.benchmark.loading import load_model_or_shape
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    console.quiet_libraries()
    loaded = load_model_or_shape(
        model, load_language_model, tokenizer=tokenizer, device=device, dtype=dtype_named(dtype)
    ).model
    counts = [*(count for count in ROWS if count < rows), rows]
    with console.err.status("Measuring"):
        found = measure_floor(loaded, rows=counts, context=context).as_dict()
    facts = facts_of("floor", model, loaded) | found
    figures = [{key: found[key][index] for key in FLOOR} for index in range(len(found["rows"]))]
    title = f"{model}, {facts['dtype']}, after {found['context']:,} tokens: the floor is {found['floor_ms']:.3f} ms"
    console.out.print(figure_table(title, FLOOR, figures))
    console.out.print(
        f"{found['weights_bytes'] / 1e9:.3f} GB of weights and {found['cache_bytes'] / 1e9:.3f} GB of cache, at "
        f"{found['copy_gb_per_s']:.1f} GB/s; {machine_line(facts)}",
        style="dim",
    )
    if as_json:
        typer.echo(json.dumps(facts))


def record(
    out: Annotated[Path, typer.Argument(help="The JSONL file that is written.")],
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder or a hub name.")] = "reader",
    dtype: Precision = "float32",
    k: Annotated[int, typer.Option("--k", "-k", help="How many passages the model reads.")] = 3,
    device: Device = None,
) -> None:
    """Ask the forty questions about the demo's documents, and write prompts, passages and answers as samples."""
    from antiphon.accel.files import write_file
    from antiphon.pipelines.benchmark.recording import as_line, recorded
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model, open_demo
    from antiphon.pipelines.data.demo import demo_questions
    from antiphon.pipelines.rag import Rag

    console.quiet_libraries()
    loaded = load_language_model(model, device=device, dtype=dtype_named(dtype))
    rag = Rag(open_demo(), loaded, k=k)
    questions = [each.question for each in demo_questions()]
    with console.progress_bars() as report:
        lines = [as_line(sample) for sample in recorded(rag, questions, name=out.stem, report=report)]
    write_file(out, "".join(f"{line}\n" for line in lines).encode(), mode=None)


def page(
    results: Annotated[list[Path], typer.Argument(help="Files of JSON lines, as the other commands end in.")],
) -> None:
    """Print the page of results, in Markdown, that stored lines of JSON make."""
    typer.echo(page_of(read_results(results)), nl=False)


FLOOR = {"rows": "rows", "ms": "ms", "ratio": "plain steps", "of_floor": "floors"}
SPEED = {
    "method": "method",
    "tokens_per_s": "tokens/s",
    "speedup": "× greedy",
    "speedup_lookup": "× lookup",
    "speedup_whole": "× greedy,\nprefill in",
    "speedup_best": "× best\nother",
    "speedup_best_whole": "× best other,\nprefill in",
    "identical": "same text",
}
STEPS = {
    "method": "method",
    "tokens_per_step": "tokens",
    "rows_per_step": "draft rows",
    "ms_per_step": "ms",
    "host_ms_per_step": "host ms",
    "draft_ms_per_step": "drafting\nms",
    "first_token_ms": "first token\nms",
    "prefill_seconds": "prefill s",
}


def _show_speed(facts: dict[str, Any]) -> None:
    console.out.print(figure_table(title(facts), SPEED, facts["methods"]))
    console.out.print(figure_table("In one step, and all prefills", STEPS, facts["methods"]))
    how = "replayed" if facts["replayed"] else "decided by the model"
    rounds = f"medians of {facts['rounds']} rounds in turn"
    console.out.print(f"{facts['samples']} texts, {how}, {rounds}; speed without the prefill", style="dim")
    console.out.print(best_other(facts["methods"]), style="dim")
    console.out.print(machine_line(facts), style="dim")


def best_other(methods: Iterable[Mapping[str, Any]]) -> str:
    """Which of the other programs was the best, without and with the prefill."""
    peers = [each for each in methods if each["is_peer"]]
    decoding = max(peers, key=lambda each: each["speedup_best"])["method"]
    whole = max(peers, key=lambda each: each["speedup_best_whole"])["method"]
    return f"the best other: {decoding}" if decoding == whole else f"the best other: {decoding}; prefill in: {whole}"


def is_kept(dtype: str, methods: Iterable[Mapping[str, Any]]) -> bool:
    """Whether every text of ours is that of plain decoding, where it has to be."""
    return dtype != "float32" or all(each["identical"] == 1 for each in methods if not each["is_peer"])
