"""A conversation in the terminal: questions are read, answers streamed and cited. Knows neither models nor prompts."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from rich.text import Text

from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize

if TYPE_CHECKING:
    from antiphon.pipelines.chat import Chat

HINT = "Ask something. Ctrl-C ends an answer, Ctrl-D the conversation."


def hold_conversation(chat: Chat, **generation: Any) -> None:
    """Answer what is asked until the end of input; a question that cannot be answered is no end."""
    if importlib.util.find_spec("readline") is not None:  # not on Windows
        import readline  # noqa: F401  # from now on the arrow keys edit the line and bring earlier ones back
    console.err.print(HINT, style="dim")
    while (question := _question()) is not None:
        if not question.strip():
            continue
        try:
            _answer(chat, question, generation)
        except KeyboardInterrupt:  # before there was a word of it
            console.out.print()
        except ValueError as error:
            console.err.print(sanitize(f"antiphon: {error}"), style="red", markup=False)


def _question() -> str | None:
    """What is asked next, or None where there is no more."""
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        console.out.print()
        return None
    except UnicodeDecodeError as error:
        console.err.print(f"antiphon: The question is not UTF-8 ({error.object!r}); type it in UTF-8.", style="red")
        return ""


def _answer(chat: Chat, question: str, generation: dict[str, Any]) -> None:
    dropped = chat.dropped_turns
    stream = chat.stream(question, **generation)
    if chat.search_query != question:
        console.out.print(Text(sanitize(f"Searched for: {chat.search_query}")), style="dim")
    if chat.dropped_turns > dropped:
        console.out.print(
            f"The first {chat.dropped_turns} turns no longer fit the model's context window; it does not see them any more.",
            style="dim",
        )
    try:
        console.show_pieces(stream)
    except KeyboardInterrupt:
        console.out.print()
    answer = stream.answer
    console.show_citations(answer)
    console.show_cost(answer)
    console.out.print()
