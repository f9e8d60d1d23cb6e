"""Runs one benchmark as a program: `python -m benchmarks.NAME`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from antiphon.pipelines.cli.console import INPUT_ERRORS, exit_with_message


class SingleCommand(TyperCommand):
    """A program of one command, whose errors of the input are one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except INPUT_ERRORS as error:
            return exit_with_message(ctx, error)


def program(command: Callable[..., None]) -> typer.Typer:
    """Return a Typer program of one command, which prints errors of its input as one line and exits with code 2."""
    app = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
    app.command(cls=SingleCommand)(command)
    return app
