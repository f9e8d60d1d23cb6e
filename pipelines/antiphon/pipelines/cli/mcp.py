"""The command `antiphon mcp`: serves search and answers from documents to agents over MCP."""

from __future__ import annotations

import asyncio
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.index_location import find_index
from antiphon.pipelines.cli.options import (
    ASKED_HELP,
    ASKED_MODEL,
    DRAFTER_HELP,
    Device,
    EngineOption,
    FewBits,
    Index,
    Precision,
)
from antiphon.pipelines.cli.preparation import check_model_fits, is_address
from antiphon.pipelines.cli.serve import Anybody, Collections, Drain, Hosts, Keys, Origins, Passages, Rate, load_service
from antiphon.pipelines.cli.served_documents import ServedDocuments, served_documents
from antiphon.pipelines.cli.trace_option import Trace, start_traces

if TYPE_CHECKING:
    from antiphon.pipelines.server.service import Service
    from antiphon.pipelines.server.settings import ServerSettings

WAITING = "Waiting for the messages of an MCP client on standard input. To configure a client, see docs/mcp.md."

REMOTE = "{} is the address of a server; agents are answered by a model that runs here: extractive, a folder or a name."

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[HOST:]PORT",
        help="Serve streamable HTTP at this address, path /mcp; HOST is 127.0.0.1 if it is left out.",
        show_default="standard input and output",
    ),
]


def mcp(
    index: Index = None,
    collections: Collections = None,
    model: Annotated[str, typer.Option("--model", "-m", help=ASKED_HELP.partition("; or a server")[0])] = ASKED_MODEL,
    http: Http = None,
    k: Passages = 5,
    keys: Keys = None,
    rate: Rate = None,
    anybody: Anybody = False,
    origins: Origins = None,
    hosts: Hosts = None,
    drain: Drain = 30,
    drafter: Annotated[str, typer.Option(help=DRAFTER_HELP)] = "blend",
    dtype: Precision = "auto",
    device: Device = None,
    engine: EngineOption = "auto",
    weights: FewBits = None,
    trace: Trace = None,
) -> None:
    """Serve search and cited answers to agents over MCP, on standard input and output or over HTTP."""
    if is_address(model):
        raise ValueError(REMOTE.format(model))
    host, port = _address(http)
    location = index if collections is not None else find_index(index)
    check_model_fits(model, device=device, dtype=dtype, engine=engine, weights=weights)
    from antiphon.pipelines.server.access_control import LOOPBACK, is_loopback
    from antiphon.pipelines.server.settings import ServerSettings

    settings = ServerSettings(
        api_keys=tuple(keys or ()),
        requests_per_minute=rate,
        allowed_origins=tuple(origins or ()),
        allowed_hosts=(*(LOOPBACK if is_loopback(host) else ()), *(hosts or ())),
        read_only=True,
    )
    documents = served_documents(location, collections, keys or (), read_only=True)
    runs = {"drafter": drafter, "dtype": dtype, "device": device, "engine": engine, "weights": weights}
    load = partial(_load, model, settings, documents, k, runs)
    start_traces(trace)
    if http is None:
        _serve_stdio(load)
    else:
        _serve_http(load, documents, settings, host, port, anybody=anybody, drain=drain)


def _address(http: str | None) -> tuple[str, int]:
    """Return the host and the port of the option `--http`."""
    try:
        parts = urlsplit(f"//{http if ':' in (http or '') else f':{http or 0}'}")
        host, port = parts.hostname or "127.0.0.1", parts.port
        if port is None or parts.path or parts.query or parts.fragment:
            raise ValueError("no port")
    except ValueError as error:
        raise ValueError(f"--http is {http!r}; give a port, or host and port, such as 8001 or [::1]:8001.") from error
    return host, port


def _load(
    model: str, settings: ServerSettings, documents: ServedDocuments, k: int, runs: dict[str, str | None]
) -> Service:
    """Open the documents and load the model; progress is shown on standard error."""
    with console.status(documents.status):
        console.quiet_libraries()
        documents.open(None, runs["device"])
    return load_service(model, settings, documents, k=k, **runs)


def _serve_stdio(load: partial[Service]) -> None:
    """Serve the program that started this one, until it closes standard input."""
    from antiphon.pipelines.mcp.server import serve_stdio
    from antiphon.pipelines.mcp.service_source import ServiceSource

    if sys.stdin.isatty():
        console.err.print(WAITING, markup=False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread that waits for input would not see Python's exception
    asyncio.run(serve_stdio(ServiceSource(load)))


def _serve_http(
    load: partial[Service],
    documents: ServedDocuments,
    settings: ServerSettings,
    host: str,
    port: int,
    *,
    anybody: bool,
    drain: int,
) -> None:
    """Serve clients over HTTP until SIGTERM or Ctrl-C."""
    from antiphon.pipelines.mcp.http import PATH, create_mcp_app
    from antiphon.pipelines.server.access_control import check_listen_address
    from antiphon.pipelines.server.http_server import listen_address, run_server

    host, port = listen_address(host, port)
    check_listen_address(host, settings, allow_without_key=anybody or documents.keys.are_needed)
    app = create_mcp_app(load())
    console.err.print(f"MCP: http://{f'[{host}]' if ':' in host else host}:{port}{PATH}", markup=False)
    run_server(app, host, port, drain_seconds=drain)
