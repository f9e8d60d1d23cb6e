"""Retrieval and language models, introduced to each other: from a question to a cited answer.

Names are imported when they are first used, so that ``import antiphon.pipelines`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer, AnswerStream
    from antiphon.pipelines.chat import Chat, Turn
    from antiphon.pipelines.citations import Citation, cite
    from antiphon.pipelines.drafting import Drafting
    from antiphon.pipelines.embedded import resolve_model
    from antiphon.pipelines.prompt import Prompt, PromptFormat, chat_prompt, guided_prompt, plain_prompt, reader_prompt
    from antiphon.pipelines.rag import Rag, Searcher
    from antiphon.pipelines.references import passage_references
    from antiphon.pipelines.sessions import Session, SessionStore

_ROOMS = {
    "answer": ("Answer", "AnswerStream"),
    "chat": ("Chat", "Turn"),
    "citations": ("Citation", "cite"),
    "drafting": ("Drafting",),
    "embedded": ("resolve_model",),
    "prompt": ("Prompt", "PromptFormat", "chat_prompt", "guided_prompt", "plain_prompt", "reader_prompt"),
    "rag": ("Rag", "Searcher"),
    "references": ("passage_references",),
    "sessions": ("Session", "SessionStore"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Answer",
    "AnswerStream",
    "Chat",
    "Citation",
    "Drafting",
    "Prompt",
    "PromptFormat",
    "Rag",
    "Searcher",
    "Session",
    "SessionStore",
    "Turn",
    "chat_prompt",
    "cite",
    "guided_prompt",
    "passage_references",
    "plain_prompt",
    "reader_prompt",
    "resolve_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
