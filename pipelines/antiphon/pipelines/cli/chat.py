"""The command `antiphon chat`: a conversation about documents in the terminal, with streamed answers and citations."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from antiphon.pipelines.cli import console, options
from antiphon.pipelines.cli.console import Stopwatch
from antiphon.pipelines.cli.index_location import index_of
from antiphon.pipelines.cli.preparation import note_missing_switch, prepare_model, read_template, sessions_in
from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.retrieval.errors import DatabaseUnavailable
from antiphon.retrieval.postgres.address import shown_location

if TYPE_CHECKING:
    from antiphon.pipelines.chat import Chat


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


HINT = "Ask a question. Ctrl-C stops an answer; exit, quit or Ctrl-D ends the conversation."

FAREWELLS = frozenset({"exit", "quit", "/exit", "/quit", ":q", "bye"})
"""Lines that end the conversation."""


def hold_conversation(chat: Chat, *, suggests: bool = False, **generation: Any) -> None:
    """Answer questions until the end of input or one of `FAREWELLS`; an error in one question does not end the loop.

    Args:
        suggests: Whether to suggest language models after the first answer.
        **generation: Options of `Chat.stream`.
    """
    if importlib.util.find_spec("readline") is not None:  # not on Windows
        import readline  # noqa: F401  # importing it enables line editing and history in input()
    console.err.print(HINT, style="dim")
    while (question := _question()) is not None:
        if not question.strip():
            continue
        if question.strip().lower() in FAREWELLS:
            return
        try:
            _answer(chat, question, generation)
            if suggests:
                console.show_suggestion()
                suggests = False
        except KeyboardInterrupt:  # before the first token
            console.out.print()
        except (ValueError, DatabaseUnavailable) as error:
            console.err.print(sanitize(f"antiphon: {error}"), style="red", markup=False)


def _question() -> str | None:
    """Return the next question, or None at the end of input."""
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        console.out.print()
        return None
    except UnicodeDecodeError as error:
        console.err.print(f"antiphon: The question is not UTF-8 ({error.object!r}); type it in UTF-8.", style="red")
        return ""


def _answer(chat: Chat, question: str, generation: dict[str, Any]) -> None:
    dropped, stopwatch = chat.dropped_turns, Stopwatch()
    with console.status("Searching") if console.err.is_terminal else nullcontext():
        stream = chat.stream(question, **generation)
    if chat.search_query != question:
        console.out.print(Text(sanitize(f"Searched for: {chat.search_query}")), style="dim")
    if chat.dropped_turns > dropped:
        console.out.print(
            f"The first {chat.dropped_turns} turns no longer fit into the context window and were dropped.",
            style="dim",
        )
    try:
        console.show_stream(stream, stopwatch)
    except KeyboardInterrupt:
        console.out.print()
    answer = stream.answer
    console.show_citations(answer)
    console.show_cost(answer, stopwatch)
    console.out.print()
