"""Programs of the relevance recipe: train the two sentence encoders that score which line answers a question.

python -m recipes.relevance --help
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.console import CommandGroup
from antiphon.pipelines.cli.preparation import dtype_named
from recipes.options import Documents, Out, Questions, Seed

if TYPE_CHECKING:
    from antiphon.pipelines.relevance import LineEncoder
    from recipes.relevance.examples import RelevanceExamples

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train the sentence encoders that score which line of a passage answers a question.",
)
Dtype = Annotated[str, typer.Option(help="Dtype of the encoder's compute; the adapter is float32.")]


@app.command()
def line(
    documents: Documents,
    out: Out,
    start: Annotated[Path | None, typer.Option(help="Adapter to start from; default a new one.")] = None,
    questions: Questions = None,
    steps: Annotated[int, typer.Option(help="Number of updates. On two CPU cores one takes 2 to 3 seconds.")] = 1200,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    dtype: Dtype = "bfloat16",
    seed: Seed = 1,
) -> None:
    """Train the encoder that encodes passages alone; 8 of 100 pages are held out and evaluated."""
    import torch

    from antiphon.pipelines import relevance
    from antiphon.retrieval import MiniLMEmbedder
    from recipes.relevance.line_encoder import LineEncoder, line_encoder_plan, train_line_encoder

    console.quiet_libraries()
    plan = line_encoder_plan(steps, learning_rate, seed)
    training, held_out = _examples(documents, questions or (), seed)
    in_half = dtype_named(dtype) is torch.bfloat16
    model = LineEncoder(MiniLMEmbedder(engine="torch"), plan, in_half=in_half, start=start)
    with console.progress_bars() as bar:
        train_line_encoder(
            model,
            lambda number: training.batch(number, plan.batch_size),
            out,
            plan,
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
        )
    _evaluate(
        relevance.LineEncoder(MiniLMEmbedder(adapter=out), relevance.Head.load(out), is_cross=False), held_out, out
    )


@app.command()
def cross(
    documents: Documents,
    out: Out,
    start: Annotated[
        Path | None, typer.Option(help="Adapter of either encoder to start from; default the bundled line encoder's.")
    ] = None,
    questions: Questions = None,
    steps: Annotated[int, typer.Option(help="Number of updates. On two CPU cores one takes 1 to 2 seconds.")] = 3000,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 5e-4,
    dtype: Dtype = "bfloat16",
    seed: Seed = 1,
) -> None:
    """Train the encoder that encodes question and passage together; 8 of 100 pages are held out and evaluated."""
    import torch

    from antiphon.pipelines.relevance import RELEVANCE, Head, LineEncoder
    from antiphon.retrieval import MiniLMEmbedder
    from recipes.relevance.cross_encoder import CrossEncoder, cross_encoder_plan, train_cross_encoder

    console.quiet_libraries()
    plan = cross_encoder_plan(steps, learning_rate, seed)
    in_half = dtype_named(dtype) is torch.bfloat16
    model = CrossEncoder(MiniLMEmbedder(engine="torch"), plan, start or RELEVANCE, in_half=in_half)
    training, held_out = _examples(documents, questions or (), seed)
    with console.progress_bars() as bar:
        train_cross_encoder(
            model,
            lambda number: training.pairs(number, plan.batch_size),
            out,
            plan,
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
        )
    _evaluate(LineEncoder(MiniLMEmbedder(adapter=out), Head.load(out), is_cross=True), held_out, out)


def _examples(
    documents: list[Path], questions: Sequence[Path], seed: int
) -> tuple[RelevanceExamples, RelevanceExamples]:
    """Return the examples of the training pages and those of the held-out pages."""
    from recipes.reader.corpus import is_held_out, read_corpus
    from recipes.reader.written_questions import HELD_OUT_QUESTIONS, WRITTEN_QUESTIONS, load_written_questions
    from recipes.relevance.examples import RelevanceExamples

    with console.err.status("EncoderInput the documents"):
        passages = read_corpus(documents)
        own = [one for file in questions for one in load_written_questions(file)]
        training = RelevanceExamples(
            [one for one in passages if not is_held_out(one)],
            [*load_written_questions(WRITTEN_QUESTIONS), *own],
            seed=seed,
        )
        held_out = RelevanceExamples(
            [one for one in passages if is_held_out(one)],
            [*load_written_questions(HELD_OUT_QUESTIONS), *own],
            seed=seed,
        )
    return training, held_out


def _evaluate(encoder: LineEncoder, held_out: RelevanceExamples, out: Path) -> None:
    from recipes.relevance.evaluate import relevance_figures

    figures = relevance_figures(encoder.scores, [one for asked in held_out.asked.values() for one in asked])
    console.out.print(
        f"{figures.answered} questions about held-out pages: the best line answers {figures.right:.1%}. "
        f"{figures.declined} questions without an answer score lower in {figures.separated:.1%} of pairs (ROC AUC). "
        f"The adapter is in {out}",
        markup=False,
    )


if __name__ == "__main__":
    app()
