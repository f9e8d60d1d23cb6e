"""The command `antiphon chat`: a conversation about documents."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.indexed_paths import index_of
from antiphon.pipelines.cli.options import (
    ASKED_MODEL,
    DEFAULT_MODEL,
    EXTRACTIVE,
    AskedModel,
    Device,
    EngineOption,
    FewBits,
    Index,
    MaxNewTokens,
    MaxThinkingTokens,
    Paths,
    PromptFile,
    Quote,
    Sessions,
    Thinking,
)
from antiphon.pipelines.cli.preparation import note_missing_switch, prepare_model, read_template, sessions_in
from antiphon.pipelines.cli.where_option import Where, where_filter
from antiphon.retrieval.postgres.address import shown_location


def chat(
    paths: Paths = None,
    index: Index = None,
    model: AskedModel = ASKED_MODEL,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of passages per question.")] = 5,
    where: Where = None,
    max_new_tokens: MaxNewTokens = None,
    prompt: PromptFile = None,
    quote: Quote = True,
    thinking: Thinking = None,
    max_thinking_tokens: MaxThinkingTokens = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Let the model rewrite follow-up questions for retrieval.")
    ] = False,
    device: Device = None,
    engine: EngineOption = "auto",
    weights: FewBits = None,
    sessions: Sessions = None,
) -> None:
    """Hold a conversation. Each question is answered from its own passages; the prompt contains the earlier turns."""
    if rewrite and model in (EXTRACTIVE, DEFAULT_MODEL):
        from antiphon.pipelines.question_rewriting import CANNOT_REWRITE

        raise ValueError(CANNOT_REWRITE.format(model))
    condition, template = where_filter(where), read_template(prompt, model)
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
        suggests=model == EXTRACTIVE,
        where=condition,
        max_new_tokens=max_new_tokens,
        thinking=thinking,
        max_thinking_tokens=max_thinking_tokens,
    )
