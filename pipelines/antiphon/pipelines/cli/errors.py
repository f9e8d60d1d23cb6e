"""Command groups that print an error in the user's input as one line on standard error and exit with code 2."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize

INVALID_INPUT = 2
"""Exit code if an argument, an option or a file cannot be used."""

INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError)


def exit_with_message(context: Any, error: Exception) -> None:
    """Print an error in the user's input and exit with code 2."""
    # A closed pipe is not an error of the input: `head` closes it once it has enough lines.
    if isinstance(error, BrokenPipeError) or context.params.get("traceback"):
        raise error
    console.err.print(sanitize(f"antiphon: {error}"), style="red", markup=False)
    context.exit(INVALID_INPUT)


class CommandGroup(TyperGroup):
    """A group of commands. With the option ``--traceback``, errors are raised with their traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except INPUT_ERRORS as error:
            return exit_with_message(ctx, error)
