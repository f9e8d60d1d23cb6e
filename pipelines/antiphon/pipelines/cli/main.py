"""All commands in one program, and how it ends where something given cannot be used. Knows no command from inside.

Heavy imports stand inside the commands, so that `antiphon --help` is quick.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from antiphon.pipelines.cli import bench, bita, console, reader
from antiphon.pipelines.cli.ask import ask
from antiphon.pipelines.cli.certify import certify
from antiphon.pipelines.cli.chat import chat
from antiphon.pipelines.cli.demo import demo
from antiphon.pipelines.cli.doctor import doctor
from antiphon.pipelines.cli.index import index
from antiphon.pipelines.cli.lookahead import lookahead
from antiphon.pipelines.cli.serve import serve
from antiphon.pipelines.rendering.visible import visible

BAD_INPUT = 2
"""The exit code where something that was given cannot be used."""


class Commands(TyperGroup):
    """Commands whose errors about what was given are one sentence on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with ``--traceback`` an error shows where it came from."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read the output has seen enough, as `head` has
            raise
        except (ValueError, TypeError, OSError, ImportError) as error:
            if ctx.params.get("traceback"):
                raise
            console.err.print(visible(f"antiphon: {error}"), style="red", markup=False)
            ctx.exit(BAD_INPUT)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (index, ask, chat, serve, demo, certify, doctor, lookahead):
    app.command()(command)
for name, group in {"bench": bench.app, "bita": bita.app, "reader": reader.app}.items():
    app.add_typer(group, name=name)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.out.print(f"antiphon {version('antiphon')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and end.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    """Answers from your documents, drafted from their own passages: faster, and with exactly the same words."""
