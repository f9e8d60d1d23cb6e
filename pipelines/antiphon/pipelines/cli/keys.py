"""The commands of `antiphon keys`: make, list and revoke API keys of a server with collections."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys of a server with collections.")

KEY_FILE = "ANTIPHON_COLLECTIONS"
"""The environment variable that names the file of collections and keys."""

ONCE = "This is the only time that the key is shown; the file has its SHA-256 digest."

File = Annotated[Path, typer.Option("--file", "-f", envvar=KEY_FILE, help="File of collections and keys.")]
KeyName = Annotated[str, typer.Argument(help="Name of the key, such as that of the person or program with it.")]


@app.command()
def create(
    name: KeyName,
    file: File,
    read: Annotated[
        list[str] | None, typer.Option(help="Collection that the key may read, * for all; may be repeated.")
    ] = None,
    write: Annotated[
        list[str] | None,
        typer.Option(help="Collection that the key may read and change, * for all; may be repeated."),
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Requests in any minute.", min=1, show_default="the server's setting")
    ] = None,
) -> None:
    """Make a key, print it once, and write its digest to the file. A running server accepts it at once."""
    from antiphon.pipelines.server.key_file import add_key

    if not read and not write:
        raise ValueError("Give the collections of the key: --read NAME, --write NAME, or * for all of them.")
    key = add_key(file, name, read=read or (), write=write or (), requests_per_minute=requests_per_minute)
    typer.echo(key)
    console.err.print(ONCE, style="dim", markup=False)


@app.command("list")
def list_keys(file: File, as_json: AsJson = False) -> None:
    """List the keys with their collections, without digests."""
    from antiphon.pipelines.server.key_file import read_key_file

    keys = read_key_file(file).keys or {}
    rows = [{"name": name, **each.model_dump(exclude={"sha256"})} for name, each in keys.items()]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    console.out.print(key_table(f"Keys in {file}", rows) if rows else f"There are no keys in {file}.")


def key_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of keys."""
    from antiphon.pipelines.rendering.tables import result_table

    shown = [
        {
            **row,
            **{right: ", ".join(row[right]) or "none" for right in ("read", "write")},
            "requests_per_minute": row["requests_per_minute"] or "the server's setting",
        }
        for row in rows
    ]
    columns = {"name": "key", "read": "reads", "write": "reads and changes", "requests_per_minute": "requests a minute"}
    return result_table(title, columns, shown)


@app.command()
def revoke(name: KeyName, file: File) -> None:
    """Remove a key from the file. A running server refuses it from the next request on."""
    from antiphon.pipelines.server.key_file import remove_key

    remove_key(file, name)
    console.err.print(f"The key {name} is revoked.", markup=False)
