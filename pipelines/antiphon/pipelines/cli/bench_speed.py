"""The command `antiphon bench speed`: decoding speed of all methods on the same prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.benchmark.facts import machine_caption, run_facts, run_title
from antiphon.pipelines.benchmark.llama_bench import check_llama_bench, compare, measure_llama_bench
from antiphon.pipelines.benchmark.loading import ARCHITECTURES
from antiphon.pipelines.benchmark.samples import SHIPPED, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import Device, Limit, Precision, Task
from antiphon.pipelines.rendering.tables import result_table

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.benchmark.run import Job
    from antiphon.pipelines.benchmark.speed import Speed

ModelOrArchitecture = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="reader, smollm2, a folder, a hub name, or an architecture with random weights: "
        f"{', '.join(ARCHITECTURES)}.",
    ),
]
Shape = Annotated[
    str | None,
    typer.Option(
        help="Compare the programs at the size of a model: its architecture with random weights, from a folder in the "
        "user's cache (gigabytes), decodes the recorded answers in transformers, OpenVINO GenAI and Antiphon alike. "
        "Start-up and memory are measured too."
    ),
]
TokenizerName = Annotated[
    str | None,
    typer.Option("--tokenizer", help="For random weights: a folder or hub name.", show_default="SmolLM2's"),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help="hf-lookup, hf-lookup-n3, or a drafter: blend, blend:16 (at most 16 draft tokens), blend@openvino (on "
        "that engine), ...; blend-warm, which learns from the requests before it in a round, as a LanguageModel does; "
        "openvino-genai, and openvino-genai-lookup:8 (8 draft tokens): OpenVINO GenAI on the same weights.",
        show_default="all",
    ),
]
Windows = Annotated[
    list[str] | None,
    typer.Option(
        help="Add lookahead with this window: columns, n-gram and guesses, as 7,5,7; may be repeated. Without "
        "--method, only these and greedy decoding are measured."
    ),
]
Unread = Annotated[
    bool, typer.Option("--unread", help="Measure each --lookahead a second time, without n-grams of the prompt.")
]
Passages = Annotated[
    int | None,
    typer.Option(
        help="Build new prompts over this many references, in the model's prompt format; 0: the question alone.",
        show_default="the recorded prompts",
    ),
]
Gguf = Annotated[
    list[Path] | None,
    typer.Option(
        help="Also measure llama.cpp's plain decoding with this GGUF file, such as the model in Q4_K_M, by its program "
        "llama-bench; may be repeated."
    ),
]
Rounds = Annotated[int, typer.Option(help="How often everything is decoded; medians are shown.")]
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
LLAMA_CPP = {
    "model": "llama.cpp",
    "gb": "GB",
    "tokens_per_s": "tokens/s",
    "first_token_ms": "first token\nms",
    "speedup": "Antiphon\n×",
    "speedup_whole": "Antiphon ×,\nend to end",
}
STARTS = {
    "program": "program",
    "seconds": "first token s",
    "peak_gb": "peak GB",
    "resident_gb": "afterwards GB,\nwithout mapped files",
}
SHAPE_METHODS = (
    "openvino-genai",
    *(f"openvino-genai-lookup:{tokens}" for tokens in (3, 5, 8, 10)),
    "blend@openvino",
)
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


def speed(
    file: Annotated[
        str, typer.Argument(help=f"Recorded answers as JSONL, or a bundled file: {' or '.join(SHIPPED)}.")
    ] = "python-docs",
    model: ModelOrArchitecture = "reader",
    shape: Shape = None,
    method: Methods = None,
    lookahead: Windows = None,
    unread: Unread = False,
    dtype: Precision = "auto",
    num_draft_tokens: NumDraftTokens = "auto",
    task: Task = None,
    limit: Limit = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens per output.")] = 256,
    passages: Passages = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Give every question the references of another.")] = False,
    rounds: Rounds = 3,
    warm_up: Annotated[int, typer.Option(help="Number of samples decoded once before, unmeasured.")] = 1,
    tokenizer: TokenizerName = None,
    device: Device = None,
    gguf: Gguf = None,
    chart: Annotated[list[Path] | None, typer.Option(help="Draw a .png or .svg; may be repeated.")] = None,
    as_json: AsJsonToo = False,
) -> None:
    """Compare the decoding speed of transformers, OpenVINO GenAI and every drafter on the same prompts.

    An architecture has random weights; it computes, and emits the recorded answers. Ctrl-C shows the figures so far.
    The exit code is 1 if one of our outputs in float32 differs from greedy decoding.
    """
    from antiphon.pipelines.benchmark.chart import draw
    from antiphon.pipelines.benchmark.jobs import make_jobs
    from antiphon.pipelines.benchmark.methods import methods_to_compare
    from antiphon.pipelines.benchmark.speed import measure_speed
    from antiphon.pipelines.benchmark.start_up import start_arguments

    console.quiet_libraries()
    _check_files(chart or (), gguf or ())
    methods = methods_to_compare(method or _defaults(shape), num_draft_tokens, lookahead or (), unread=unread)
    samples = load_samples(file, task=task, limit=limit)
    loaded = _load(model, shape, tokenizer, device, dtype)
    name = shape or model
    prompts: dict[str, Any] = {"passages": passages, "shuffled": shuffle, "replayed": name in ARCHITECTURES}
    jobs = make_jobs(loaded, samples, limit=max_new_tokens, **prompts)
    with console.progress_bars() as report:
        how: dict[str, Any] = {"limit": max_new_tokens, "rounds": rounds, "warm_up": warm_up, "report": report}
        measured = measure_speed(loaded, jobs, methods, **how)
    facts = run_facts("speed", name, loaded.model) | {"file": Path(file).name, "task": task} | prompts
    facts |= _extent(jobs, measured) | {"max_new_tokens": max_new_tokens, "rows": num_draft_tokens}
    facts |= {"methods": measured.as_dict()}
    _show(facts)
    facts |= _show_llama_cpp(gguf or (), facts)
    if shape is not None:
        programs = start_arguments(loaded.name, loaded.model)
        del loaded, methods  # their memory is needed by the programs that start now
        facts |= {"starts": _show_starts(programs)}
    for path in chart or ():
        draw(facts["methods"], path, run_title(facts))
    if as_json:
        typer.echo(json.dumps(facts))
    raise typer.Exit(0 if is_lossless(facts["dtype"], facts["methods"]) else 1)


def _check_files(charts: Sequence[Path], models: Sequence[Path]) -> None:
    """Raise an error now if a chart could not be drawn or a GGUF file not be measured."""
    from antiphon.pipelines.benchmark.chart import check_chart

    for path in charts:
        check_chart(path)
    check_llama_bench(models)


def _extent(jobs: Sequence[Job], measured: Speed) -> dict[str, Any]:
    """Return the number of rounds, the number of samples, and the mean length of their prompts, in tokens."""
    done = measured.methods[0].rounds
    lengths = [len(job.prompt) for job in jobs[: len(done[0])]]
    return {"samples": len(lengths), "prompt_tokens": round(sum(lengths) / len(lengths), 1), "rounds": len(done)}


def _defaults(shape: str | None) -> tuple[str, ...] | None:
    return SHAPE_METHODS if shape else None


def _load(model: str, shape: str | None, tokenizer: str | None, device: str | None, dtype: str) -> LanguageModel:
    """Load a model by name, with random weights, or from the stored checkpoint of a shape."""
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.benchmark.loading import load_model_or_random, stored_shape
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    place: dict[str, Any] = {"device": device, "dtype": dtype_named(dtype)}
    if shape is None:
        return load_model_or_random(model, load_language_model, tokenizer=tokenizer, **place)
    with console.progress_bars() as report:
        folder = stored_shape(shape, tokenizer=tokenizer, report=report)
        return LanguageModel.from_pretrained(folder, report=report, **place)


def _show_llama_cpp(files: Sequence[Path], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Measure llama.cpp with each file at the mean lengths of prompts and answers, print and return its figures."""
    if not files:
        return {}
    lengths = {
        "prompt_tokens": round(facts["prompt_tokens"]),
        "new_tokens": round(facts["methods"][0]["tokens"] / facts["samples"]),
    }
    with console.err.status("llama-bench"):
        theirs = measure_llama_bench(files, **lengths, threads=facts["threads"], rounds=facts["rounds"])
    compared = compare(theirs, facts["methods"])
    console.out.print(result_table("llama.cpp without drafts", LLAMA_CPP, compared))
    return {"llama_cpp": compared}


def _show_starts(programs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Start each program in a new process, and print seconds to the first token and memory."""
    from antiphon.pipelines.benchmark.start_up import measure_starts

    with console.err.status("Starting each program"):
        starts = measure_starts(programs)
    console.out.print(result_table("New process, from its start to the first token", STARTS, starts))
    return starts


def _show(facts: dict[str, Any]) -> None:
    console.out.print(result_table(run_title(facts), SPEED, facts["methods"]))
    console.out.print(result_table("Per step, and all prefills", STEPS, facts["methods"]))
    how = "replayed" if facts["replayed"] else "the model's own outputs"
    rounds = f"medians of {facts['rounds']} rounds in turn"
    console.out.print(f"{facts['samples']} prompts, {how}, {rounds}; speed without prefill", style="dim")
    console.out.print(best_baseline(facts["methods"]), style="dim")
    console.out.print(machine_caption(facts), style="dim")


def best_baseline(methods: Iterable[Mapping[str, Any]]) -> str:
    """Return a line that names the fastest baseline, for decoding and end to end."""
    baselines = [each for each in methods if each["is_baseline"]]
    decoding = max(baselines, key=lambda each: each["speedup_best"])["method"]
    whole = max(baselines, key=lambda each: each["speedup_best_whole"])["method"]
    return f"best baseline: {decoding}" if decoding == whole else f"best baseline: {decoding}; end to end: {whole}"


def is_lossless(dtype: str, methods: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether all our outputs equal greedy decoding's, which is required in float32 only.

    Args:
        dtype: Name of the model's dtype.
        methods: Figures of the methods.
    """
    return dtype != "float32" or all(each["identical"] == 1 for each in methods if not each["is_baseline"])
