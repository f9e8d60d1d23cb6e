"""A conversation in the terminal ends with the words that people type, and the server says where its page is."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.pipelines.cli.chat_loop import hold_conversation


class Asked:
    """A chat that records questions and answers none."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.dropped_turns = 0

    def stream(self, question: str, **generation: Any) -> Any:
        """Record a question and refuse it."""
        self.questions.append(question)
        raise ValueError("not answered")


@pytest.mark.parametrize("farewell", ["quit", "exit", "/quit", "/exit", " Quit ", ":q"])
def test_quit_and_exit_end_a_conversation(farewell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["How do I quit vim?", farewell, "Is this read?"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    chat: Any = Asked()
    hold_conversation(chat)
    assert chat.questions == ["How do I quit vim?"]
    assert next(lines) == "Is this read?"
