"""Runs one benchmark as a program: `python -m benchmarks.NAME`."""

from __future__ import annotations

from collections.abc import Callable

import typer

from antiphon.pipelines.cli.errors import SingleCommand


def program(command: Callable[..., None]) -> typer.Typer:
    """Return a Typer program of one command, which prints errors of its input as one line and exits with code 2."""
    app = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
    app.command(cls=SingleCommand)(command)
    return app
