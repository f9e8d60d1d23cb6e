"""The command `antiphon serve`: serves a model and an index over HTTP."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.cli import console, options
from antiphon.pipelines.cli.index_location import index_of
from antiphon.pipelines.cli.keys import KEY_FILE
from antiphon.pipelines.cli.preparation import prepare_model, read_template
from antiphon.pipelines.cli.served_documents import ServedDocuments, name_for_clients, served_documents
from antiphon.pipelines.tracing import start_traces

if TYPE_CHECKING:
    from fastapi import FastAPI

    from antiphon.accel import TextModel
    from antiphon.pipelines.server.service import Service
    from antiphon.pipelines.server.settings import ServerSettings

NO_INDEX = "The model {!r} quotes documents: name files or folders, an index (--index), or another model (--model)."
NO_DOCUMENTS = "--prompt is the prompt of answers from documents: give an index (--index), or leave it out."

Served = Annotated[
    str | None,
    typer.Option(
        "--index",
        "-i",
        help="Folder of an index, made by `antiphon index`, or the address of a table of PostgreSQL, to answer from.",
        show_default=".antiphon here or in a folder above, if there is one",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on; addresses other than this machine's own need a key.")]
Port = Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)]
Keys = Annotated[
    list[str] | None,
    typer.Option("--api-key", envvar="ANTIPHON_API_KEY", help="Key that clients must send; may be repeated."),
]
Collections = Annotated[
    Path | None,
    typer.Option(
        "--collections", envvar=KEY_FILE, help="File of several indexes, and of the keys that may read or change them."
    ),
]
Rate = Annotated[
    int | None,
    typer.Option("--requests-per-minute", help="Requests in any minute of each key without a limit of its own.", min=1),
]
Anybody = Annotated[bool, typer.Option("--allow-without-key", help="Accept other machines without a key.")]
Origins = Annotated[
    list[str] | None,
    typer.Option("--allow-origin", help="Origin that browsers may send requests from (CORS); may be repeated."),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Host name that the server accepts; may be repeated.", show_default="all"),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Reject document uploads.")]
Parallel = Annotated[int, typer.Option(help="Maximum number of running requests.", min=1)]
Queue = Annotated[int, typer.Option(help="Maximum number of waiting requests.", min=0)]
LongestPrompt = Annotated[
    int | None, typer.Option(help="Maximum prompt length in tokens.", show_default="the model's context window")
]
LongestAnswer = Annotated[int, typer.Option(help="Maximum number of new tokens per answer.", min=1)]
Passages = Annotated[int, typer.Option("--k", "-k", help="Number of passages in the prompt.")]
Drain = Annotated[int, typer.Option(help="Seconds that running requests get when the server is stopped.")]
DrainDelay = Annotated[
    int, typer.Option(help="Seconds before that in which requests are still accepted, and /ready answers 503.", min=0)
]
EmbedderName = Annotated[
    str | None, typer.Option(help="Serve embeddings without an index: minilm, bge-m3, a folder or a hub name.")
]


def serve(
    paths: options.Paths = None,
    index: Served = None,
    collections: Collections = None,
    model: Annotated[
        str, typer.Option("--model", "-m", envvar=options.MODEL_VARIABLE, help=options.SERVED_HELP)
    ] = options.DEFAULT_MODEL,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    keys: Keys = None,
    rate: Rate = None,
    anybody: Anybody = False,
    origins: Origins = None,
    hosts: Hosts = None,
    read_only: ReadOnly = False,
    parallel: Parallel = 16,
    queue: Queue = 64,
    max_prompt: LongestPrompt = None,
    max_output: LongestAnswer = 4096,
    k: Passages = 5,
    drain: Drain = 30,
    drain_delay: DrainDelay = 0,
    drafter: options.Drafter = "blend",
    dtype: options.Precision = "auto",
    device: options.Device = None,
    engine: options.EngineOption = "auto",
    weights: options.FewBits = None,
    embedder: EmbedderName = None,
    prompt: options.PromptFile = None,
    quote: options.Quote = True,
    trace: options.Trace = "none",
) -> None:
    """Serve a model, and if there is an index its answers from documents, over OpenAI's protocol, with a web page."""
    template = read_template(prompt, model)
    # Answers of the reader are quoted without running it.
    quoting = options.EXTRACTIVE if model == options.DEFAULT_MODEL else model
    load_model = prepare_model(quoting, device=device, dtype=dtype, engine=engine, weights=weights)
    from antiphon.pipelines.models.drafters import resolve_drafter

    factory = resolve_drafter(drafter)
    given = index or (paths[0] if paths else None)
    location = index_of(paths, index) if given and not collections else given
    documents = served_documents(location, collections, keys or (), read_only=read_only)
    with _uncollected():
        from antiphon.pipelines.server.access_control import LOOPBACK, check_listen_address, is_loopback
        from antiphon.pipelines.server.http_server import listen_address, run_server
        from antiphon.pipelines.server.settings import ServerSettings

        host, port = listen_address(host, port)
        settings = ServerSettings(
            api_keys=tuple(keys or ()),
            requests_per_minute=rate,
            max_running=parallel,
            max_waiting=queue,
            max_prompt_tokens=max_prompt,
            max_output_tokens=max_output,
            allowed_origins=tuple(origins or ()),
            allowed_hosts=(*(LOOPBACK if is_loopback(host) else ()), *(hosts or ())),
            read_only=read_only,
        )
        check_listen_address(host, settings, allow_without_key=anybody or documents.keys.are_needed)
        start_traces(trace)
        with console.status(documents.status):
            documents.open(embedder, device)
        own: dict[str, Any] = {"template": template, "quote_first": quote, "drafter": factory}
        service = load_service(load_model, model, settings, documents, k=k, **own)
        _show_addresses(service, host, port)
        run_server(_application(service), host, port, drain_seconds=drain, drain_delay=drain_delay)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection during start-up, which creates hundreds of thousands of long-lived objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def load_service(
    load_model: Callable[..., TextModel],
    model: str,
    settings: ServerSettings,
    documents: ServedDocuments,
    *,
    k: int,
    template: str | None,
    quote_first: bool,
    drafter: Any,
) -> Service:
    """Load the language model, and return the service for it and for the opened documents.

    Args:
        load_model: loads the model, see `prepare_model`.
        model: the model's name, as the user gave it.
        template: the prompt template, see `template_prompt`; None: the model's own format.
        quote_first: as in `Rag`.
        drafter: the drafter's factory, or "auto".

    Raises:
        ValueError: the model needs documents and there are none, or the model does not accept
            ``template``.
    """
    from antiphon.accel.remote_language_model import RemoteLanguageModel
    from antiphon.pipelines.extractive_model import ExtractiveModel
    from antiphon.pipelines.prompt import template_prompt
    from antiphon.pipelines.server.service import make_service

    if model in (options.EXTRACTIVE, options.DEFAULT_MODEL) and not documents.locations:
        raise ValueError(NO_INDEX.format(model))
    language_model: Any = load_model(drafter)
    if isinstance(language_model, RemoteLanguageModel):
        name = name_for_clients(language_model.name)
    else:
        name = name_for_clients(model)
        if not isinstance(language_model, ExtractiveModel):
            language_model.name = name  # error messages contain the name; clients need not see the folder
    if template and not documents.locations:
        raise ValueError(NO_DOCUMENTS)
    form = template_prompt(template, language_model) if template else None
    return make_service(
        language_model,
        settings,
        name=name,
        embedder=documents.embedder,
        reranker=documents.reranker,
        collections=documents.collections(language_model, k=k, prompt=form, quote_first=quote_first),
        keys=documents.keys,
    )


def _application(service: Service) -> FastAPI:
    """Return the application of a service, with MCP at /mcp."""
    from antiphon.pipelines.mcp.http import add_mcp
    from antiphon.pipelines.server.app import create_app

    app = create_app(service)
    add_mcp(app, service)
    return app


def _show_addresses(service: Service, host: str, port: int) -> None:
    """Print the models, and the URLs of the web page, the API and MCP on this machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}"
    console.err.print(f"Serving {', '.join(service.models)}", markup=False)
    console.err.print(f"Page: {address}/   API: {address}/v1   MCP: {address}/mcp", markup=False)
