"""Programs of the BiTA recipe: train mask tokens that draft for a model, and evaluate them.

python -m recipes.bita --help
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.console import CommandGroup
from antiphon.pipelines.cli.options import AsJson, Device, Precision
from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
from antiphon.pipelines.rendering.tables import result_table

if TYPE_CHECKING:
    from recipes.bita.evaluate import GuessFigures

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train mask tokens that draft for a model (BiTA), and evaluate them.",
)

Model = Annotated[str, typer.Option("--model", "-m", help="smollm2, reader, a model's folder or a hub name.")]


@app.command()
def train(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; an interrupted run resumes there.")],
    model: Model = "smollm2",
    data: Annotated[
        Path | None,
        typer.Option(help="Prompts, one per line, or JSON lines with a prompt each; default: bundled ones."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Number of bundled prompts, if there is no --data.")] = 480,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens per answer.")] = 160,
    steps: Annotated[int, typer.Option(help="Number of updates. One takes about 15 seconds on a CPU core.")] = 240,
    answers: Annotated[int, typer.Option(help="Answers per update.")] = 6,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-2,
    prefix: Annotated[int, typer.Option(help="Prefix keys and values per layer; 0 trains the masks alone.")] = 16,
    masks: Annotated[int, typer.Option(help="Number of mask tokens: how many tokens ahead are drafted.")] = 3,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
    dtype: Precision = "auto",
    device: Device = None,
) -> None:
    """Let a model answer prompts greedily, and train mask tokens to predict these answers ahead.

    Use the weights with: antiphon ask ... --bita OUT/bita.safetensors
    """
    from antiphon.accel.drafting.drafters import BITA_FILE
    from recipes.bita.answers import own_answers
    from recipes.bita.prompts import read_prompts, written_prompts
    from recipes.bita.train import BitaPlan, train_bita

    console.quiet_libraries()
    plan = BitaPlan(
        steps=steps, answers=answers, learning_rate=learning_rate, prefix=prefix, masks=masks, seed=seed
    )  # validated before anything is loaded
    asked = read_prompts(data) if data else written_prompts(prompts, seed=seed)
    language_model = load_language_model(model, device=device, dtype=dtype_named(dtype))
    with console.progress_bars() as bar:
        own = own_answers(
            language_model,
            asked,
            out / "answers.jsonl",
            max_new_tokens=max_new_tokens,
            report=partial(bar, "Answering"),
        )
        train_bita(
            language_model.model,
            own,
            out,
            plan,
            report=lambda step, loss: bar(f"Training, loss {loss:.3f}", step, steps),
        )
    file = out / BITA_FILE
    console.out.print(f"The weights are in {file}; use them with: antiphon ask ... --bita {file}", markup=False)


@app.command()
def evaluate(
    learned: Annotated[
        Path | None, typer.Argument(help="File of trained weights; default: the bundled one for smollm2.")
    ] = None,
    model: Model = "smollm2",
    data: Annotated[
        Path | None,
        typer.Option(help="Prompts, one per line, or JSON lines with a prompt each; default: bundled ones."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Number of prompts; bundled ones are about held-out topics.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens per answer.")] = 160,
    answers: Annotated[Path | None, typer.Option(help="File that stores the model's answers for the next run.")] = None,
    dtype: Precision = "auto",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure tokens per step on the model's own answers, against untrained mask tokens."""
    from tempfile import TemporaryDirectory

    from antiphon.accel.engines.torch.bita_weights import BitaWeights
    from antiphon.accel.models.bundled import BITA_WEIGHTS
    from recipes.bita.answers import own_answers
    from recipes.bita.evaluate import guess_figures
    from recipes.bita.initial import initial_bita_weights
    from recipes.bita.prompts import read_prompts, written_prompts

    console.quiet_libraries()
    trained = BitaWeights.load(learned or BITA_WEIGHTS)
    asked = read_prompts(data)[:prompts] if data else written_prompts(prompts, held_out=True)
    language_model = load_language_model(model, device=device, dtype=dtype_named(dtype))
    trained.check(language_model.model)
    fresh = initial_bita_weights(language_model.model, prefix=trained.prefix, masks=len(trained.masks))
    with console.progress_bars() as bar, TemporaryDirectory() as folder:
        file = answers or Path(folder) / "answers.jsonl"
        said = own_answers(
            language_model,
            asked,
            file,
            max_new_tokens=max_new_tokens,
            report=partial(bar, "Answering"),
        )
        results = {
            name: guess_figures(language_model.model, each, said, report=partial(bar, name))
            for name, each in {"trained": trained, "untrained": fresh}.items()
        }
    if as_json:
        typer.echo(json.dumps({name: asdict(each) for name, each in results.items()}))
        return
    console.out.print(training_table(results))


def training_table(results: Mapping[str, GuessFigures]) -> Table:
    """Return a table of tokens per step by draft tree shape, and of acceptance rates, trained and untrained."""
    first = next(iter(results.values()))
    rows: list[Mapping[str, str | float]] = [
        {"": f"tokens per step, {shape}"} | {name: each.tokens_per_step[shape] for name, each in results.items()}
        for shape in first.tokens_per_step
    ]
    for mask in range(len(first.best)):
        shares = {name: f"{each.best[mask][0]:.2f} / {each.best[mask][-1]:.2f}" for name, each in results.items()}
        rows.append({"": f"mask {mask + 1}, best / best 5"} | shares)
    return result_table("", {"": "figure"} | {name: name for name in results}, rows)


if __name__ == "__main__":
    app()
