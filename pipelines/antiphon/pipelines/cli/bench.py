"""The commands of `antiphon bench`: measurements on the user's own machine, as a table or one line of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.accel.drafting.drafters import DRAFTERS, make_drafter
from antiphon.accel.processor import processor_name
from antiphon.pipelines.benchmark.facts import command_line, instruction_sets
from antiphon.pipelines.benchmark.loading import load_tokenizer
from antiphon.pipelines.benchmark.replay import replay_samples
from antiphon.pipelines.benchmark.samples import load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.bench_speed import speed
from antiphon.pipelines.cli.bench_vllm import vllm
from antiphon.pipelines.cli.options import EXTRACTIVE, AsJson, Device, Limit, Task
from antiphon.pipelines.rendering.tables import result_table

if TYPE_CHECKING:
    from antiphon.accel import TextModel
    from antiphon.pipelines.benchmark.answers import AnswerTrace

app = typer.Typer(
    no_args_is_help=True,
    help="Measure speed, drafts, vector indexes, answers and the drafters of vLLM on this machine.",
)
app.command()(speed)
app.command()(vllm)

REPLAY = {
    "drafter": "drafter",
    "tokens_per_step": "tokens per step",
    "rows_per_step": "rows per step",
    "steps": "steps",
    "tokens": "tokens",
    "draft_ms_per_step": "drafting, ms per step",
}
INDEXING = {
    "setting": "setting",
    "factory": "index",
    "probes": "probes",
    "recall@100": "recall@100",
    "recall@10": "recall@10",
    "queries_per_second": "queries\nper second",
    "milliseconds": "latency,\nms",
    "build_seconds": "build, s",
    "bytes_per_vector": "bytes\nper vector",
    "disk_bytes_per_vector": "on disk",
    "peak_gib": "peak so far,\nGiB",
}
ANSWERS = {
    "corpus": "corpus",
    "answerable": "answer-\nable",
    "unanswerable": "not",
    "cut": "lost in\nchunking",
    "recall@3": "recall\nat 3",
    "recall@5": "recall\nat 5",
    "recall@10": "recall\nat 10",
    "lost_retrieval": "lost in\nretrieval",
    "lost_prompt": "lost in\nprompt",
    "lost_reader": "lost by\nreader",
    "right": "right",
    "wrongly_declined": "answerable\ndeclined",
    "declined": "others\ndeclined",
}


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(help="Recorded answers: JSONL with id, task, query, references, prompt, response.")
    ],
    tokenizer: Annotated[str, typer.Option(help="The tokenizer's folder, or its name on the hub.")],
    drafter: Annotated[str | None, typer.Option(help=f"{', '.join(DRAFTERS)}; default: each of them.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(help="Maximum number of draft tokens to verify per step.")] = 32,
    task: Task = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Count the decoding steps that recorded answers would have taken with a drafter, without running a model."""
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
    console.out.print(result_table(f"{len(samples)} answers, at most {num_draft_tokens} draft tokens", REPLAY, figures))


@app.command()
def index(
    vectors: Annotated[int, typer.Option(help="Number of synthetic vectors, in clusters.")] = 100_000,
    dim: Annotated[int, typer.Option(help="Dimension of the synthetic vectors.")] = 1024,
    texts: Annotated[Path | None, typer.Option(help="Embed every line of the files in this folder instead.")] = None,
    vectors_file: Annotated[
        Path | None, typer.Option(help="Use a .npy file of vectors instead; with --texts it is written if missing.")
    ] = None,
    embedder: Annotated[str, typer.Option(help="For --texts: minilm, bge-m3, a folder or a hub name.")] = "minilm",
    queries: Annotated[int, typer.Option(help="Number of vectors held out as queries.")] = 400,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            help="flat, auto, compact, paper or a FAISS factory string; may be repeated.",
            show_default="flat, paper, auto, and compact with more and less rescoring",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure recall, speed and memory of vector indexes against exact search."""
    from antiphon.pipelines.benchmark import indexing, vector_sets

    console.quiet_libraries()
    with console.progress_bars() as report:
        loaded = vector_sets.load_vectors(texts, vectors_file, embedder, count=vectors, dim=dim, report=report)
        searched, asked = vector_sets.held_out(loaded, queries)
        count, dim = searched.shape
        chosen = indexing.settings(count, dim, setting or ())
        figures = [each.as_dict() for each in indexing.measure_indexes(searched, asked, chosen, report=report)]
    facts = {
        "kind": "index",
        "command": command_line(),
        "processor": processor_name(),
        "units": instruction_sets(),
        "vectors": count,
        "dim": dim,
        "queries": queries,
    }
    if as_json:
        typer.echo(json.dumps(facts | {"settings": figures}))
        return
    console.out.print(result_table(f"{count:,} vectors of {dim:,}, {queries} queries", INDEXING, figures))


@app.command()
def answers(
    folder: Annotated[
        Path, typer.Argument(help="Folder with one subfolder of documents per corpus, and questions.jsonl.")
    ],
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="extractive, reader, smollm2, a folder, or none to measure retrieval only."),
    ] = "extractive",
    k: Annotated[int, typer.Option("--k", "-k", help="Number of passages in the prompt.")] = 5,
    embedder: Annotated[str, typer.Option(help="minilm, bge-m3, a folder or a hub name.")] = "minilm",
    corpus: Annotated[str | None, typer.Option(help="Measure this corpus only.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "auto",
    show: Annotated[
        bool, typer.Option("--show", help="Print every question, its answer, and the stage that lost it.")
    ] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Ask questions about your documents, and count which stage (chunking, retrieval, prompt, model) loses answers."""
    from antiphon.pipelines.benchmark.answers import answer_figures, load_span_questions, trace_answers
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
    from antiphon.pipelines.extractive_model import ExtractiveModel

    console.quiet_libraries()
    questions = [one for one in load_span_questions(folder) if corpus in (None, one.corpus)]
    reader: TextModel | None = ExtractiveModel() if model == EXTRACTIVE else None
    if model not in (EXTRACTIVE, "none"):
        reader = load_language_model(model, device=device, dtype=dtype_named(dtype))
    with console.progress_bars() as bar:
        done: list[AnswerTrace] = []

        def report(trace: AnswerTrace) -> None:
            done.append(trace)
            bar("Asking", len(done), len(questions))
            if show:
                typer.echo(_trace_text(trace))

        traces = trace_answers(questions, folder, embedder=embedder, language_model=reader, k=k, report=report)
    rows = answer_figures(traces)
    if as_json:
        facts = {"kind": "answers", "command": command_line(), "model": model, "embedder": embedder, "k": k}
        typer.echo(json.dumps(facts | {"corpora": rows}))
        return
    columns = {key: heading for key, heading in ANSWERS.items() if key in rows[0]}
    console.out.print(result_table(f"{len(traces)} questions, {k} passages, {model}", columns, rows))


def _trace_text(trace: AnswerTrace) -> str:
    expected = " / ".join(trace.question.spans) or "-"
    place = "cut" if trace.is_cut else f"at {trace.rank}" if trace.rank else "not found"
    verdict = "right" if trace.is_right else "declined" if trace.is_refusal else trace.lost_at or "answered"
    answer = f"\n  answer   {trace.text}" if trace.text is not None else ""
    return f"{trace.question.corpus}: {trace.question.question}\n  expected {expected} ({place})\n  {verdict}{answer}"
