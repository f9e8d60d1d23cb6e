"""The command `antiphon mcp`: serves search and answers from documents to the agent that starts it."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.cli import console, options
from antiphon.pipelines.cli.index_location import find_index
from antiphon.pipelines.cli.preparation import prepare_model, read_template
from antiphon.pipelines.cli.serve import Collections, Passages, load_service
from antiphon.pipelines.cli.served_documents import served_documents
from antiphon.pipelines.tracing import start_traces

if TYPE_CHECKING:
    from antiphon.pipelines.server.service import Service

WAITING = "Waiting for the messages of an MCP client on standard input. To configure a client, see docs/mcp.md."


def mcp(
    index: options.Index = None,
    collections: Collections = None,
    model: options.AskedModel = options.ASKED_MODEL,
    k: Passages = 5,
    drafter: options.Drafter = "blend",
    dtype: options.Precision = "auto",
    device: options.Device = None,
    engine: options.EngineOption = "auto",
    weights: options.FewBits = None,
    prompt: options.PromptFile = None,
    trace: options.Trace = "none",
) -> None:
    """Serve search and cited answers to an agent over MCP, on standard input and output."""
    template = read_template(prompt, model)
    location = index if collections is not None else find_index(index)
    load_model = prepare_model(model, device=device, dtype=dtype, engine=engine, weights=weights)
    from antiphon.pipelines.models.drafters import resolve_drafter

    factory = resolve_drafter(drafter)
    documents = served_documents(location, collections, (), read_only=True)

    def load() -> Service:
        """Open the documents and load the model; progress is shown on standard error."""
        from antiphon.pipelines.server.settings import ServerSettings

        with console.status(documents.status):
            documents.open(None, device)
        own: dict[str, Any] = {"template": template, "quote_first": False, "drafter": factory}
        return load_service(load_model, model, ServerSettings(read_only=True), documents, k=k, **own)

    start_traces(trace)
    from antiphon.pipelines.mcp.server import make_mcp_server

    if sys.stdin.isatty():
        console.err.print(WAITING, markup=False)
    # Python's KeyboardInterrupt would not reach a thread that waits for input.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    make_mcp_server(load, is_local=True).run("stdio")
