"""Reads questions in the terminal and prints streamed answers with citations."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.text import Text

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.console import Stopwatch
from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.retrieval.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from antiphon.pipelines.chat import Chat

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
