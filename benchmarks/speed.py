"""Speed study: `antiphon bench speed` with further methods and models, llama.cpp, and the start of each program.

python -m benchmarks.speed
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.benchmark.facts import run_facts
from antiphon.pipelines.benchmark.methods import GREEDY
from antiphon.pipelines.benchmark.samples import RecordedSample, load_samples
from benchmarks.shapes import ARCHITECTURES, stored_shape

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
from antiphon.pipelines.cli import bench, console
from antiphon.pipelines.cli.options import Device, Limit, Precision, Task
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.llama_bench import check_llama_bench, compare, measure_llama_bench
from benchmarks.program import program
from benchmarks.random_weights import ModelOrArchitecture, TokenizerName, load_model_or_random

Shape = Annotated[
    str | None,
    typer.Option(
        help="Compare the programs at the size of a model: its architecture with random weights, from a folder in the "
        "user's cache (gigabytes), decodes the recorded answers in all programs alike. "
        f"One of {', '.join(ARCHITECTURES)}."
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
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help="As in `antiphon bench speed`; blend-warm, which learns from the requests before it in a round, as a "
        "LanguageModel does; openvino-genai, and openvino-genai-lookup:8 (8 draft tokens): OpenVINO GenAI, if it is "
        "installed, on the same weights.",
        show_default="all",
    ),
]
Plain = Annotated[
    str,
    typer.Option(
        help="Plain decoding, with which all others are compared; nothing@openvino for models whose layers take "
        "minutes per prompt in transformers."
    ),
]
Gguf = Annotated[
    list[Path] | None,
    typer.Option(
        help="Also measure llama.cpp's plain decoding with this GGUF file, such as the model in Q4_K_M, by its program "
        "llama-bench; may be repeated."
    ),
]
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


def speed(
    file: bench.Answers = "python-docs",
    model: ModelOrArchitecture = "reader",
    shape: Shape = None,
    method: Methods = None,
    lookahead: Windows = None,
    unread: Unread = False,
    plain: Plain = GREEDY,
    dtype: Precision = "auto",
    num_draft_tokens: bench.NumDraftTokens = "auto",
    task: Task = None,
    limit: Limit = None,
    max_new_tokens: bench.NewTokens = 256,
    passages: bench.Passages = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Give every question the references of another.")] = False,
    rounds: bench.Rounds = 3,
    warm_up: bench.WarmUp = 1,
    tokenizer: TokenizerName = None,
    device: Device = None,
    gguf: Gguf = None,
    as_json: bench.AsJsonToo = False,
) -> None:
    """Compare the decoding speed of several programs; with --shape, also their start-up and memory.

    An architecture has random weights; it computes, and emits the recorded answers. Ctrl-C shows the figures so far.
    The exit code is 1 if one of our outputs in float32 differs from greedy decoding.
    """
    from antiphon.pipelines.benchmark.jobs import make_jobs
    from antiphon.pipelines.benchmark.methods import parse_num_draft_tokens
    from antiphon.pipelines.cli.preparation import dtype_named
    from benchmarks.forced_methods import replay_jobs, replaying
    from benchmarks.methods import study_methods
    from benchmarks.start_up import start_arguments

    console.quiet_libraries()
    check_llama_bench(gguf or ())
    names = method or (() if lookahead else default_methods(shape))
    methods = study_methods(
        names, parse_num_draft_tokens(num_draft_tokens), lookahead or (), unread=unread, plain=plain
    )
    samples = load_samples(file, task=task, limit=limit)
    if shuffle:
        samples = with_other_references(samples)
        passages = max(len(sample.references) for sample in samples) if passages is None else passages
    place: dict[str, Any] = {"device": device, "dtype": dtype_named(dtype)}
    loaded = load_shape(shape, **place) if shape else load_model_or_random(model, tokenizer=tokenizer, **place)
    name = shape or model
    is_replayed = name in ARCHITECTURES
    facts = run_facts("speed", name, loaded.model, program="python -m benchmarks.speed")
    facts |= {"file": Path(file).name, "task": task, "shuffled": shuffle, "rows": num_draft_tokens}
    facts |= {"passages": passages, "replayed": is_replayed}
    jobs = (replay_jobs if is_replayed else make_jobs)(loaded, samples, limit=max_new_tokens, passages=passages)
    with replaying(loaded, methods, limit=max_new_tokens) if is_replayed else nullcontext(methods) as compared:
        facts |= bench.compare_speed(loaded, jobs, compared, limit=max_new_tokens, rounds=rounds, warm_up=warm_up)
    bench.show_speed(facts)
    facts |= _show_llama_cpp(gguf or (), facts)
    if shape is not None:
        programs = start_arguments(loaded.name, loaded.model)
        del loaded, methods  # the programs that start now need their memory
        facts |= {"starts": _show_starts(programs)}
    if as_json:
        typer.echo(json.dumps(facts))
    raise typer.Exit(0 if bench.is_lossless(facts["dtype"], facts["methods"]) else 1)


GENAI_METHODS = ("openvino-genai", *(f"openvino-genai-lookup:{tokens}" for tokens in (3, 5, 8, 10)))


def default_methods(shape: str | None) -> Sequence[str]:
    """Return the methods that are compared if none is named; at a model's size the fastest ones that can run here."""
    from antiphon.accel.engines.openvino.runtime import is_installed
    from antiphon.pipelines.benchmark.methods import NAMES, PROMPT_LOOKUP

    if shape is None:
        return NAMES
    theirs = GENAI_METHODS if find_spec("openvino_genai") else tuple(PROMPT_LOOKUP)
    return (*theirs, "blend@openvino" if is_installed() else "blend")


def load_shape(name: str, *, device: str | None, dtype: Any) -> LanguageModel:
    """Load the stored checkpoint of an architecture with random weights; make it first if there is none."""
    from antiphon.accel import LanguageModel

    with console.progress_bars() as report:
        folder = stored_shape(name, report=report)
        return LanguageModel.from_pretrained(folder, device=device, dtype=dtype, report=report)


def with_other_references(samples: Sequence[RecordedSample]) -> list[RecordedSample]:
    """Give every sample the references of the sample half a list further on, so that there is almost nothing to copy.

    Raises:
        ValueError: there is a single sample.
    """
    if len(samples) < 2:
        raise ValueError("There is only 1 sample; shuffling references needs at least 2.")
    half = len(samples) // 2
    others = [*samples[half:], *samples[:half]]
    return [replace(sample, references=other.references) for sample, other in zip(samples, others, strict=True)]


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
    from benchmarks.start_up import measure_starts

    with console.err.status("Starting each program"):
        starts = measure_starts(programs)
    console.out.print(result_table("New process, from its start to the first token", STARTS, starts))
    return starts


app = program(speed)

if __name__ == "__main__":
    app()
