"""Typer commands that print errors about their input as one line on standard error and exit with code 2."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize

INVALID_INPUT = 2
"""Exit code if an argument, an option or a file cannot be used."""

_INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError)


def _exit_with_message(context: Any, error: Exception) -> None:
    # A closed pipe is not an error of the input: `head` closes it once it has enough lines.
    if isinstance(error, BrokenPipeError) or context.params.get("traceback"):
        raise error
    console.err.print(sanitize(f"antiphon: {error}"), style="red", markup=False)
    context.exit(INVALID_INPUT)


class CommandGroup(TyperGroup):
    """A group of commands. If the group has an option ``--traceback`` and it is set, errors are raised instead."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except _INPUT_ERRORS as error:
            return _exit_with_message(ctx, error)


class SingleCommand(TyperCommand):
    """A program of one command."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except _INPUT_ERRORS as error:
            return _exit_with_message(ctx, error)
