"""The command `antiphon index`: creates, changes, lists or describes an index of documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.index_location import DEFAULT_INDEX, find_index, nearest_index
from antiphon.pipelines.cli.index_report import index_documents, show_documents, show_index, update_documents
from antiphon.pipelines.cli.options import Device
from antiphon.pipelines.rendering.sanitize import sanitize_line
from antiphon.pipelines.rendering.segments import counted
from antiphon.retrieval.embedders.prompts import with_prompts
from antiphon.retrieval.postgres.address import shown_location


def _describe(location: str | None) -> None:
    if location is not None:
        from antiphon.retrieval import read_stored

        console.out.print("\n".join(read_stored(location).lines()), markup=False, soft_wrap=True)
        raise typer.Exit


def _list(location: str | None) -> None:
    if location is not None:
        show_documents(location)
        raise typer.Exit


Indexed = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Files and folders: text, HTML, PDF, Office, tables, e-mail, code, archives. Without any, the index is "
        "brought up to date: files that are new, changed or gone."
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder of the index, or a table of PostgreSQL: postgresql://USER@HOST/DATABASE?table=NAME.",
        show_default=".antiphon",
    ),
]
EmbedderName = Annotated[
    str,
    typer.Option(
        help="minilm, bge-m3, a folder, a hub name, or a model on a server (ollama/NAME, an address); auto: BGE-M3 on "
        "a GPU, MiniLM on a CPU."
    ),
]
QueryPrompt = Annotated[
    str | None,
    typer.Option(help="What the embedder reads before a question; by default the model's own or its family's."),
]
DocumentPrompt = Annotated[str | None, typer.Option(help="What the embedder reads before a document, likewise.")]
Setting = Annotated[str, typer.Option(help="Vector index: auto, flat or compact.")]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Embed on a Ray cluster: HOST:PORT of its head node or auto on one of its machines, ray://HOST:PORT on "
        "another; or local, which starts Ray on this machine."
    ),
]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Follow symbolic links, also to files outside the folders.")
]
Add = Annotated[bool, typer.Option("--add", help="Add to the index, instead of replacing all of its documents.")]
Remove = Annotated[bool, typer.Option("--remove", help="Remove these documents from the index.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Drop documents of the index without asking.")]
Watch = Annotated[bool, typer.Option("--watch", help="Keep running, and index files again when they change.")]
Described = Annotated[
    str | None,
    typer.Option(
        callback=_describe, is_eager=True, help="Show an index's settings, the reasons and its recall, and exit."
    ),
]
Listed = Annotated[
    str | None, typer.Option("--list", callback=_list, is_eager=True, help="List the documents of an index, and exit.")
]


def index(
    paths: Indexed = None,
    out: Out = None,
    embedder: EmbedderName = "auto",
    query_prompt: QueryPrompt = None,
    document_prompt: DocumentPrompt = None,
    device: Device = None,
    setting: Setting = "auto",
    ray: Ray = None,
    follow_links: FollowLinks = False,
    add: Add = False,
    remove: Remove = False,
    yes: Yes = False,
    watch: Watch = False,
    describe: Described = None,
    listed: Listed = None,
) -> None:
    """Index documents. Passages that the index has already are not embedded again."""
    if remove and (add or watch):
        raise ValueError("--remove cannot be combined with --add or --watch; run one after the other.")
    # --add and --remove change the index that questions are answered from; a new index is made in
    # this folder.
    location = out or ((nearest_index() if add or remove else None) or DEFAULT_INDEX)
    if not paths:
        if remove or watch or ray is not None:
            raise ValueError("--remove, --watch and --ray need paths: antiphon index PATH... with the same options.")
        show_index(update_documents(find_index(out), device=device))
        return
    if remove:
        _remove(paths, location, device)
        return
    prompted = with_prompts(embedder, query_prompt, document_prompt)
    options = {"embedder": prompted, "device": device, "setting": setting, "follow_links": follow_links, "add": add}
    show_index(index_documents(paths, location, yes=yes, ray=ray, **options))
    if watch:
        console.err.print("Waiting for changes; stop with Ctrl-C.", markup=False)
        _watch(paths, location, options)


def _remove(paths: Sequence[Path], location: str | Path, device: str | None) -> None:
    from antiphon.retrieval import remove_documents

    removed = remove_documents(location, paths, device=device)
    documents = counted(len(removed), "document")
    console.err.print(f"{documents} removed: {sanitize_line(shown_location(location))}", markup=False)


def _watch(paths: Sequence[Path], out: str | Path, options: dict[str, Any]) -> None:
    from antiphon.retrieval import watch_index

    try:
        for report in watch_index(paths, out, **{**options, "add": True}):
            show_index(report)
    except KeyboardInterrupt:
        console.err.print("Stopped.", markup=False)
