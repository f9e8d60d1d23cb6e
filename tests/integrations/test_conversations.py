"""Of ten conversations whose second question needs the first, at least seven are answered right, on every path.

`benchmarks/corpora/conversations.jsonl` has the conversations and the texts that answer their second questions.
`make test` asks them in Python; `test_same_answers.py` compares all paths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.integrations.llama_index import AntiphonChatEngine
from antiphon.pipelines import Chat, Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.follow_up import is_follow_up
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import Retriever
from benchmarks.answers import has_words

pytestmark = [pytest.mark.usefixtures("encoded_once"), pytest.mark.slow, pytest.mark.timeout(900)]

CORPORA = Path(__file__).parents[2] / "benchmarks" / "corpora"
LINES = (CORPORA / "conversations.jsonl").read_text("utf-8").splitlines()
CONVERSATIONS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
MAX_WRONG = 3

Hold = Callable[[Sequence[str]], str]
"""Asks the questions of one conversation, and returns the last answer."""


@pytest.fixture(scope="module")
def rag(index: Path, bundled_reader: LanguageModel) -> Rag:
    return Rag(Retriever.open(index), bundled_reader)


@pytest.fixture(scope="module")
def client(rag: Rag) -> Iterator[TestClient]:
    settings = ServerSettings(max_running=2, max_waiting=2)
    with TestClient(create_app(make_service(rag.language_model, settings, name="reader", rag=rag))) as client:  # type: ignore[arg-type]
        yield client


def wrong_answers(hold: Hold) -> list[tuple[str, str]]:
    """Return the second questions whose answers are wrong, with the answers."""
    answers = [(each, hold(each["turns"])) for each in CONVERSATIONS]
    return [
        (each["turns"][1], text) for each, text in answers if not any(has_words(text, span) for span in each["spans"])
    ]


def test_there_are_ten_conversations_and_each_second_question_refers_to_the_first() -> None:
    assert len(CONVERSATIONS) == 10
    assert all(is_follow_up(each["turns"][1]) for each in CONVERSATIONS)


def test_in_python(rag: Rag) -> None:
    def hold(questions: Sequence[str]) -> str:
        chat = Chat(rag)
        return [chat.ask(question).text for question in questions][-1]

    wrong = wrong_answers(hold)
    assert len(wrong) <= MAX_WRONG, wrong


@pytest.mark.exhaustive
def test_without_the_conversation_fewer_are_right(rag: Rag) -> None:
    assert len(wrong_answers(lambda questions: rag.ask(questions[-1]).text)) > MAX_WRONG


@pytest.mark.exhaustive
def test_with_the_command_chat(rag: Rag, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.pipelines.cli.chat.open_language_model", lambda *_, **__: rag.language_model)

    def hold(questions: Sequence[str]) -> str:
        spoken = "\n".join([*questions, "exit"]) + "\n"
        done = CliRunner().invoke(app, ["chat", "--index", str(index)], input=spoken)
        assert done.exit_code == 0, done.output
        return done.stdout.split("> ")[len(questions)].partition("\nQuoted verbatim from")[0]

    wrong = wrong_answers(hold)
    assert len(wrong) <= MAX_WRONG, wrong


@pytest.mark.exhaustive
def test_with_chat_completions(client: TestClient) -> None:
    def hold(questions: Sequence[str]) -> str:
        messages: list[dict[str, str]] = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            body = {"model": "reader+docs", "messages": messages}
            result = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            messages.append({"role": "assistant", "content": result["choices"][0]["message"]["content"]})
        return messages[-1]["content"]

    wrong = wrong_answers(hold)
    assert len(wrong) <= MAX_WRONG, wrong


@pytest.mark.exhaustive
def test_with_responses(client: TestClient) -> None:
    def hold(questions: Sequence[str]) -> str:
        messages: list[dict[str, str]] = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            body = {"model": "reader+docs", "input": messages, "store": False}
            result = client.post("/v1/responses", json=body).raise_for_status().json()
            [message] = [each for each in result["output"] if each["type"] == "message"]
            messages.append({"role": "assistant", "content": message["content"][0]["text"]})
        return messages[-1]["content"]

    wrong = wrong_answers(hold)
    assert len(wrong) <= MAX_WRONG, wrong


@pytest.mark.exhaustive
def test_with_langchain(rag: Rag) -> None:
    chat = ChatAntiphon(language_model=rag.language_model)
    chain = chat.with_retriever(AntiphonRetriever(retriever=rag.retriever, k=rag.k))

    def hold(questions: Sequence[str]) -> str:
        history: list[Any] = []
        for question in questions:
            answer = chain.invoke({"question": question, "chat_history": history})["answer"]
            history += [("user", question), answer]
        return str(history[-1].text)

    wrong = wrong_answers(hold)
    assert len(wrong) <= MAX_WRONG, wrong


@pytest.mark.exhaustive
def test_with_llama_index(rag: Rag) -> None:
    def hold(questions: Sequence[str]) -> str:
        engine = AntiphonChatEngine(rag)
        return [str(engine.chat(question)) for question in questions][-1]

    wrong = wrong_answers(hold)
    assert len(wrong) <= MAX_WRONG, wrong
