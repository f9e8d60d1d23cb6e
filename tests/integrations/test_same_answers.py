"""The command line, Python, chats, the server, LangChain and LlamaIndex give the same answers and citations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from antiphon.accel import LanguageModel
from antiphon.integrations import llama_index
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.integrations.llama_index import AntiphonChatEngine, AntiphonLLM, AntiphonQueryEngine
from antiphon.pipelines import Chat, Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import Retriever

pytestmark = [
    pytest.mark.usefixtures("encoded_once"),
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
]

CORPORA = Path(__file__).parents[2] / "benchmarks" / "corpora"
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
MAX_TOKENS = 24
K = 3

QUESTIONS = (
    "How do I build with CUDA?",
    "How do I build with ROCm for AMD cards?",
    "Who is the director of the observatory?",
    "How do I run something every ten minutes?",
)
CONVERSATIONS = (
    ("How do I build with CUDA?", "And how do I set the architecture myself?"),
    ("What was the effect of a weekly flush?", "And how long did it last after it was stopped?"),
)


@dataclass(frozen=True)
class Shown:
    """What a user sees: the text, the cited spans of the text with what they quote, and the cited documents."""

    text: str
    cited: tuple[tuple[str, str], ...]


Ask = Callable[[Sequence[str]], list[Shown]]
"""Asks the questions of one conversation, each after the answers to those before it."""


@pytest.fixture(scope="module")
def rag(index: Path, bundled_reader: LanguageModel) -> Rag:
    return Rag(Retriever.open(index), bundled_reader, k=K)


def quoted(text: str, spans: Sequence[tuple[int, int, str]]) -> Shown:
    """Return what is shown, from spans of the text and the text that each quotes."""
    return Shown(text, tuple((text[start:end], cited) for start, end, cited in spans))


def by_python(rag: Rag) -> Ask:
    """Ask each question alone."""

    def ask(questions: Sequence[str]) -> list[Shown]:
        answers = [rag.ask(question, max_new_tokens=MAX_TOKENS) for question in questions]
        return [quoted(each.text, [(note.start, note.end, note.text) for note in each.citations]) for each in answers]

    return ask


def by_chat(rag: Rag) -> Ask:
    """Ask in one `Chat`."""

    def ask(questions: Sequence[str]) -> list[Shown]:
        chat = Chat(rag)
        answers = [chat.ask(question, max_new_tokens=MAX_TOKENS) for question in questions]
        return [quoted(each.text, [(note.start, note.end, note.text) for note in each.citations]) for each in answers]

    return ask


def by_http(client: TestClient) -> Ask:
    """Ask the server, with the whole conversation in each request."""

    def ask(questions: Sequence[str]) -> list[Shown]:
        messages: list[dict[str, str]] = []
        shown = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            body = {"model": "reader+docs", "messages": messages, "max_tokens": MAX_TOKENS}
            message = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]
            messages.append({"role": "assistant", "content": message["content"]})
            notes = [note["url_citation"] for note in message["annotations"]]
            spans = [(note["start_index"], note["end_index"], note["cited_text"]) for note in notes]
            shown.append(quoted(message["content"], spans))
        return shown

    return ask


def by_langchain(rag: Rag) -> Ask:
    """Ask a chain, with the earlier messages as its "chat_history"."""
    chat = ChatAntiphon(language_model=rag.language_model, max_tokens=MAX_TOKENS)
    chain = chat.with_retriever(AntiphonRetriever(retriever=rag.retriever, k=K))

    def ask(questions: Sequence[str]) -> list[Shown]:
        history: list[Any] = []
        shown = []
        for question in questions:
            found = chain.invoke({"question": question, "chat_history": history})
            history += [("user", question), found["answer"]]
            notes = found["citations"]
            spans = [(note["start_index"], note["end_index"], note["cited_text"]) for note in notes]
            shown.append(quoted(str(found["answer"].text), spans))
        return shown

    return ask


def by_llama_index(rag: Rag) -> Ask:
    """Ask the query engine first, and then the chat engine."""
    parts = (
        llama_index.AntiphonRetriever(rag.retriever, k=K),
        AntiphonLLM(language_model=rag.language_model, max_tokens=MAX_TOKENS),
    )
    single = AntiphonQueryEngine(*parts)

    def ask(questions: Sequence[str]) -> list[Shown]:
        chat = AntiphonChatEngine(*parts)
        answers: list[Any] = [chat.chat(question) for question in questions]
        if len(questions) == 1:
            answers = [single.query(questions[0])]
        return [
            Shown(str(each), tuple((" ".join(note.cited_content.text.split()),) * 2 for note in each.citations))
            for each in answers
        ]

    return ask


def by_command_line(rag: Rag, index: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Ask with the command `ask`, which here takes the loaded model."""
    monkeypatch.setattr("antiphon.pipelines.cli.ask.prepare_model", lambda *_, **__: lambda *_: rag.language_model)

    def ask(questions: Sequence[str]) -> list[Shown]:
        options = ["--index", str(index), "--json", "--k", str(K), "--max-new-tokens", str(MAX_TOKENS)]
        done = CliRunner().invoke(app, ["ask", *questions, *options])
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
        notes = [(note["start"], note["end"], note["text"]) for note in answer["citations"]]
        return [quoted(answer["text"], notes)]

    return ask


@pytest.fixture
def paths(rag: Rag, index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Ask]]:
    settings = ServerSettings(max_running=2, max_waiting=2)
    with TestClient(create_app(make_service(rag.language_model, settings, name="reader", rag=rag))) as client:
        yield {
            "python": by_python(rag),
            "command line": by_command_line(rag, index, monkeypatch),
            "chat": by_chat(rag),
            "http": by_http(client),
            "langchain": by_langchain(rag),
            "llama-index": by_llama_index(rag),
        }


def same(shown: Shown) -> tuple[str, list[str]]:
    """Return the text and what is cited, in a form that all paths can show."""
    return shown.text, [" ".join(cited.split()) for _, cited in shown.cited]


def test_a_question_has_the_same_answer_on_every_path(paths: dict[str, Ask]) -> None:
    refused = 0
    for question in QUESTIONS:
        answers = {path: same(ask([question])[0]) for path, ask in paths.items()}
        assert all(answer == answers["python"] for answer in answers.values()), answers
        refused += answers["python"][0].startswith("The passages do not say.")
    assert 1 <= refused < len(QUESTIONS), "some questions have no answer in the documents"


def test_a_conversation_has_the_same_answers_on_every_path(paths: dict[str, Ask], rag: Rag) -> None:
    changed = 0
    for questions in CONVERSATIONS:
        answers = {
            path: [same(each) for each in ask(questions)]
            for path, ask in paths.items()
            if path not in ("python", "command line")
        }
        assert all(answer == answers["chat"] for answer in answers.values()), answers
        changed += answers["chat"][1][0] != rag.ask(questions[1], max_new_tokens=MAX_TOKENS).text
    assert changed, "the follow-up questions need the first question"


def test_the_llama_index_block_of_the_readme_answers_ten_questions_as_ask_does(
    rag: Rag, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = re.findall(r"## In LlamaIndex\n\n```python\n(.*?)```", README, re.DOTALL)
    asked = [json.loads(line) for line in (CORPORA / "questions.jsonl").read_text(encoding="utf-8").splitlines()[::19]]
    monkeypatch.setattr("antiphon.integrations.generation_fields.text_model", lambda _: rag.language_model)
    monkeypatch.setattr("antiphon.pipelines.cli.ask.prepare_model", lambda *_, **__: lambda *_: rag.language_model)
    names: dict[str, Any] = {}
    exec(block.replace("my-index", index.as_posix()), names)
    answers = dict[str, tuple[str, str]]()
    for question in [each["question"] for each in asked][:10]:
        done = CliRunner().invoke(app, ["ask", question, "--index", str(index), "--json"])
        answers[question] = str(names["engine"].query(question)), json.loads(done.stdout)["text"]
    assert len(answers) == 10
    assert all(ours == theirs for ours, theirs in answers.values()), answers
    assert sum("do not say" not in ours for ours, _ in answers.values()) >= 5
