"""The `antiphon` program and its commands. Commands import heavy libraries when they run, so that --help is fast."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated

import typer

from antiphon.pipelines.cli import bench, console, keys
from antiphon.pipelines.cli.ask import ask
from antiphon.pipelines.cli.chat import chat
from antiphon.pipelines.cli.config import config, default_options
from antiphon.pipelines.cli.console import CommandGroup
from antiphon.pipelines.cli.demo import demo
from antiphon.pipelines.cli.doctor import doctor
from antiphon.pipelines.cli.index import index
from antiphon.pipelines.cli.mcp import mcp
from antiphon.pipelines.cli.serve import serve
from antiphon.pipelines.rendering.sanitize import sanitize_line

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (index, ask, chat, serve, mcp, demo, doctor, config):
    app.command()(command)
for name, group in {"bench": bench.app, "keys": keys.app}.items():
    app.add_typer(group, name=name)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        console.out.print(f"antiphon {version('antiphon')}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Print the traceback of an error.")] = False,
) -> None:
    """Answer questions from your documents with a local model, several times faster and with identical outputs."""
    console.quiet_libraries()
    if context.invoked_subcommand != "config":  # `config` must run to correct an invalid file
        context.default_map = default_options()


def run() -> None:
    """Run the program `antiphon`. Each of Python's warnings is printed as one line, without file and line number."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, so it is called last, after all threads have ended
    try:
        app(prog_name="antiphon")
    except SystemExit as done:
        codes += [done.code or 0] if isinstance(done.code, int | None) else []
        raise


def _leave(codes: list[int]) -> None:
    """End the process with its exit code. Memory is not freed, because freeing a large model takes seconds."""
    with suppress(OSError, ValueError):  # a closed pipe: Python reports it
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for code in codes:
            os._exit(code)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    console.err.print(sanitize_line(f"Note: {message}"), style="dim", markup=False)
