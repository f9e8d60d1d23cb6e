"""The command that holds a conversation about documents. Knows how to start; the loop is in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import (
    ASKED_HELP,
    DEFAULT_MODEL,
    Device,
    EngineOption,
    FewBits,
    Index,
    MaxNewTokens,
    Sessions,
)
from antiphon.pipelines.cli.preparation import open_language_model, sessions_in
from antiphon.pipelines.models.bundled import STOPS


def chat(
    index: Index,
    model: Annotated[str, typer.Option("--model", "-m", help=ASKED_HELP)] = DEFAULT_MODEL,
    k: Annotated[int, typer.Option("--k", "-k", help="How many passages the model reads in each turn.")] = 3,
    max_new_tokens: MaxNewTokens = 256,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Have the model rewrite follow-up questions for the search.")
    ] = False,
    device: Device = None,
    engine: EngineOption = "auto",
    weights: FewBits = None,
    sessions: Sessions = None,
) -> None:
    """Ask one question after the other: answers stream, and what was said before is not read again."""
    from antiphon.pipelines.chat import Chat
    from antiphon.pipelines.cli.chat_loop import hold_conversation
    from antiphon.pipelines.rag import Rag
    from antiphon.retrieval import Retriever

    console.quiet_libraries()
    retriever = Retriever.open(index, device=device)
    store = sessions_in(sessions, retriever)
    language_model = open_language_model(model, device=device, engine=engine, weights=weights)
    rag = Rag(retriever, language_model, k=k, sessions=store)
    hold_conversation(Chat(rag, rewrite=rewrite), max_new_tokens=max_new_tokens, stop=STOPS.get(model, ()))
