"""Conversations in the terminal: stored sessions, streamed answers, Ctrl-C, and the end of input."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from antiphon.pipelines import Answer, SessionStore
from antiphon.pipelines.cli import app, console
from antiphon.pipelines.cli.chat import hold_conversation
from antiphon.retrieval import HashEmbedder
from tests.tiny import save_model, tiny_model

QUESTION = "How many eggs does a queen lay?"


def antiphon(*arguments: object, said: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=said)


@pytest.mark.slow
def test_answers_are_kept_in_the_file_that_is_named(index_folder: Path, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "sessions.sqlite"
    command = ("ask", QUESTION, "--index", index_folder, "--model", tiny_folder, "--max-new-tokens", 30, "--json")
    without = json.loads(antiphon(*command).stdout)
    assert not file.exists()
    first, second = (json.loads(antiphon(*command, "--sessions", file).stdout) for _ in range(2))
    assert first["text"] == second["text"] == without["text"]
    assert len(SessionStore(file, embedder=HashEmbedder())) == 1
    refused = antiphon(*command, "--sessions", tmp_path)
    assert refused.exit_code == 2
    assert refused.stderr.strip().endswith("cannot be opened: unable to open database file.")


@pytest.mark.slow
def test_questions_are_answered_one_after_the_other_until_the_input_ends(
    index_folder: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Answer] = []
    monkeypatch.setattr(console, "show_cost", lambda answer, _: answers.append(answer))
    command = ("chat", "--index", index_folder, "--model", tiny_folder, "--k", 1, "--max-new-tokens", 9)
    shown = antiphon(*command, said=f"{QUESTION}\n \nAnd {'how long ' * 120}is that?\nAnd in winter?\n")
    assert shown.exit_code == 0, shown.stderr
    assert [answer.usage.completion_tokens for answer in answers] == [9, 9]
    assert answers[0].steps.prefill_tokens == answers[0].usage.prompt_tokens
    assert 0 < answers[1].steps.prefill_tokens < answers[1].usage.prompt_tokens
    assert "exceeds the context window" in shown.stderr  # only the long question is refused


@pytest.mark.slow
def test_ctrl_c_ends_an_answer_and_then_the_conversation(index_folder: Path, tmp_path: Path) -> None:
    # Room for an answer that the signal interrupts.
    save_model(tiny_model(max_position_embeddings=32_768), tmp_path)
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # background jobs ignore SIGINT
    script = f"{heard}; from antiphon.pipelines.cli import app; app()"
    options = ["--index", str(index_folder), "--model", str(tmp_path), "--k", "1", "--max-new-tokens", "20000"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", script, "chat", *options], env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{QUESTION}\n".encode())
        process.stdin.flush()
        assert process.stdout.read(2) == b"> "
        process.stdout.read(1)  # the answer has begun
        process.send_signal(signal.SIGINT)
        shown = b""
        while not shown.endswith(b"> "):
            shown += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in errors
    found: Any = re.search(rb"; (\d+) tokens[,;]", shown)
    assert 0 < int(found[1]) < 20_000


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
