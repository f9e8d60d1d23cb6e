"""Three recorded answers, and functions that run command-line programs."""

import typer
from typer.testing import CliRunner, Result

from antiphon.pipelines.benchmark.samples import RecordedSample
from antiphon.pipelines.cli import app

HILL = "The museum stands on the hill above the river."
SAMPLES = [
    RecordedSample(
        "1", "rag", "Where?", (HILL, "It opens at nine."), f"{HILL} Where?", f"{HILL[:34]} and opens at nine."
    ),
    RecordedSample(
        "2", "rag", "When?", ("Bees dance.", "It opens at ten."), "It opens at ten. When?", "It opens at ten."
    ),
    RecordedSample("3", "chat", "What?", (), "What?", "A swarm in May."),
]


def run_program(app: typer.Typer, *arguments: object) -> Result:
    """Run a program with these arguments, in a terminal that no table is too wide for."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})


def antiphon(*arguments: object) -> Result:
    """Run `antiphon` with these arguments."""
    return run_program(app, *arguments)
