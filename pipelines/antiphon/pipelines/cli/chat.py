"""The command `antiphon chat`: a conversation about documents."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.pipelines.cli import console, options
from antiphon.pipelines.cli.index_location import index_of
from antiphon.pipelines.cli.preparation import note_missing_switch, prepare_model, read_template, sessions_in
from antiphon.retrieval.postgres.address import shown_location


def chat(
    paths: options.Paths = None,
    index: options.Index = None,
    model: options.AskedModel = options.ASKED_MODEL,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of passages per question.")] = 5,
    where: options.Where = None,
    max_new_tokens: options.MaxNewTokens = None,
    prompt: options.PromptFile = None,
    quote: options.Quote = True,
    thinking: options.Thinking = None,
    max_thinking_tokens: options.MaxThinkingTokens = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Let the model rewrite follow-up questions for retrieval.")
    ] = False,
    device: options.Device = None,
    engine: options.EngineOption = "auto",
    weights: options.FewBits = None,
    sessions: options.Sessions = None,
) -> None:
    """Hold a conversation. Each question is answered from its own passages; the prompt contains the earlier turns."""
    if rewrite and model in (options.EXTRACTIVE, options.DEFAULT_MODEL):
        from antiphon.pipelines.question import CANNOT_REWRITE

        raise ValueError(CANNOT_REWRITE.format(model))
    condition, template = options.where_filter(where), read_template(prompt, model)
    load_model = prepare_model(model, device=device, engine=engine, weights=weights)
    location = index_of(paths, index)
    with console.status(f"Opening {shown_location(location)}"):
        from antiphon.pipelines.chat import Chat
        from antiphon.pipelines.cli.chat_loop import hold_conversation
        from antiphon.pipelines.prompt import template_prompt
        from antiphon.pipelines.rag import Rag
        from antiphon.retrieval import Retriever

        retriever = Retriever.open(location, device=device)
        store = sessions_in(sessions, retriever)
    language_model = load_model()
    note_missing_switch(language_model, thinking)
    with console.status("Loading the sentence encoders"):
        form = template_prompt(template, language_model) if template else None
        rag = Rag(retriever, language_model, k=k, prompt=form, sessions=store, quote_first=quote, rewrite=rewrite)
    hold_conversation(
        Chat(rag),
        suggests=model == options.EXTRACTIVE,
        where=condition,
        max_new_tokens=max_new_tokens,
        thinking=thinking,
        max_thinking_tokens=max_thinking_tokens,
    )
