"""Answers of models that follow instructions: prompt, markers, refusals and the first quote on every path."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest
from fastapi.testclient import TestClient
from mcp import Client
from typer.testing import CliRunner

from antiphon.accel import LanguageModel, Step, Stream
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.integrations.llama_index import AntiphonChatEngine, AntiphonQueryEngine
from antiphon.pipelines import Chat, Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.mcp.server import make_mcp_server
from antiphon.pipelines.prompt import REFUSAL, SYSTEM, is_refusal
from antiphon.pipelines.request_plan import TurnContext
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import Service
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.conftest import TEXTS
from tests.integrations.scripted_model import ScriptedModel
from tests.pipelines.server.conftest import tiny_service

QUESTION = "How many eggs does a queen lay?"
WRITTEN = "A queen lays two thousand eggs [1, 9]. Rockets fly [2]. Nobody knows [7]."
SHOWN = "A queen lays two thousand eggs [1]. Rockets fly [2]. Nobody knows."
MARKERS = [("[1]", False), ("[2]", True)]
GERMAN = "Eine Queen legt zweitausend eggs【1†L2】. Raketen fliegen [2]. Niemand weiß es [3]."
REFUSALS = (REFUSAL, f'"{REFUSAL}" [1]')
QUESTIONS = (QUESTION, "Wie viele Eier legt eine Königin?")
BODY = {"model": "tiny+docs", "messages": [{"role": "user", "content": QUESTION}]}
SEGMENTS = {"stream": True, "stream_options": {"include_segments": True, "include_usage": True}}


class LargeModel(ScriptedModel):
    """Writes a fixed answer, and claims to have four billion parameters."""

    num_parameters = 4_000_000_000


@pytest.fixture
def folder(passages: list[Passage], tmp_path: Path) -> Path:
    named = [Passage.at("bees.pdf", each.start, each.text, {"page": "3"}) for each in passages]
    index_passages(named, tmp_path / "index", HashEmbedder())
    return tmp_path / "index"


@pytest.fixture
def rag(folder: Path) -> Rag:
    return Rag(Retriever.open(folder), LargeModel(WRITTEN), k=2)


@contextmanager
def served(model: LanguageModel, folder: Path) -> Iterator[tuple[Service, TestClient]]:
    service = tiny_service(model, folder, max_output_tokens=2000)
    with TestClient(create_app(service)) as client:
        yield service, client


def chunks(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    lines = client.post("/v1/chat/completions", json=BODY | SEGMENTS | fields).raise_for_status().text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]


def notes_of(text: str, annotations: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    notes = [each["url_citation"] for each in annotations]
    return [
        (text[each["start_index"] : each["end_index"]], each["unsupported"])
        for each in notes
        if each["kind"] == "marker"
    ]


def test_python_and_chat_show_markers_and_keep_the_tokens_of_the_model(rag: Rag) -> None:
    stream = rag.stream(QUESTION)
    assert stream.plan.parameters["max_new_tokens"] == 1024
    assert "".join(stream) == SHOWN
    answer = stream.answer
    assert answer.text == SHOWN
    assert [(SHOWN[each.start : each.end], each.unsupported) for each in answer.citations] == MARKERS
    assert answer.usage.completion_tokens == len(WRITTEN)
    assert [(each["kind"], each["unsupported"]) for each in answer.as_dict()["citations"]] == [
        ("marker", False),
        ("marker", True),
    ]
    assert answer.decoding_trace.text == SHOWN
    assert 'title="Named by the model [2] bees.pdf' in answer._repr_html_()
    assert answer._repr_html_().count("shares no word") == 2
    chat = Chat(rag)
    assert chat.ask(QUESTION).text == chat.turns[0].text == SHOWN
    assert rag.ask(QUESTION, json_schema={"type": "object"}).text == WRITTEN, "JSON has no markers"


def test_http_has_the_same_text_whole_and_streamed(rag: Rag, folder: Path) -> None:
    with served(rag.language_model, folder) as (_, client):  # type: ignore[arg-type]
        whole = client.post("/v1/chat/completions", json=BODY).raise_for_status().json()
        message = whole["choices"][0]["message"]
        streamed = chunks(client)
    assert (message["content"], notes_of(SHOWN, message["annotations"])) == (SHOWN, MARKERS)
    assert whole["usage"]["completion_tokens"] == len(WRITTEN)
    deltas = [each["choices"][0]["delta"] for each in streamed if each["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == SHOWN
    assert notes_of(SHOWN, deltas[-1]["annotations"]) == MARKERS
    assert "".join(part["text"] for each in streamed for part in each.get("segments", ())) == SHOWN


async def ask_by_mcp(service: Service, question: str = QUESTION) -> dict[str, Any]:
    async with Client(make_mcp_server(lambda: service, is_local=True), mode="legacy") as client:
        result: dict[str, Any] = (await client.call_tool("ask", {"question": question})).structured_content
        return result


PATHS = ("python", "chat", "http", "langchain", "llama_index query", "llama_index chat", "mcp")


async def ask(path: str, rag: Rag, folder: Path, question: str = QUESTION) -> tuple[str, list[tuple[str, bool]], bool]:
    """Return the text of an answer, its markers with whether each is unsupported, and whether it is a refusal."""
    model: Any = rag.language_model
    if path == "langchain":
        chain = ChatAntiphon(language_model=model).with_retriever(AntiphonRetriever(retriever=rag.retriever, k=2))
        found = chain.invoke(question)
        text, is_refused = found["answer"].content, is_refusal(found["answer"].content)
        assert "".join(each["answer"].content for each in chain.stream(question) if "answer" in each) == text
        spans = [
            (each["start_index"], each["end_index"], each["extras"].get("unsupported")) for each in found["citations"]
        ]
    elif path.startswith("llama_index"):
        engines = (AntiphonQueryEngine(rag).query, AntiphonChatEngine(rag).chat)
        response: Any = engines[path.endswith("chat")](question)
        text, is_refused = str(response), is_refusal(str(response))
        places = [each.additional_location_info for each in response.citations]
        spans = [(each["start"], each["end"], each.get("unsupported")) for each in places]
    elif path == "http":
        with served(model, folder) as (service, client):
            service.collections["docs"].rag.retriever = rag.retriever
            asked = BODY | {"messages": [{"role": "user", "content": question}]}
            [choice] = client.post("/v1/chat/completions", json=asked).raise_for_status().json()["choices"]
            other = client.post("/v1/responses", json={"model": "tiny+docs", "input": question}).json()
        text, is_refused = choice["message"]["content"], choice.get("refused", False)
        assert other.get("refused", False) == is_refused
        notes = [each["url_citation"] for each in choice["message"].get("annotations", ())]
        spans = [(each["start_index"], each["end_index"], each["unsupported"]) for each in notes]
    else:
        if path == "mcp":
            with served(model, folder) as (service, _):
                service.collections["docs"].rag.retriever = rag.retriever
                said = await ask_by_mcp(service, question)
        else:
            said = (Chat(rag) if path == "chat" else rag).ask(question).as_dict()
            said["answer"] = said["text"]
        text, is_refused = said["answer"], said["is_refusal"]
        spans = [(each["start"], each["end"], each["unsupported"]) for each in said["citations"]]
    markers = [(text[start:end], bool(unsupported)) for start, end, unsupported in spans if text[start] in "[【"]
    return text, markers, is_refused


@pytest.mark.parametrize("path", PATHS)
async def test_markers_refusals_and_languages_are_the_same_on_every_path(path: str, folder: Path) -> None:
    retriever = Retriever.open(folder)
    for written, expected in (
        (WRITTEN, (SHOWN, MARKERS, False)),
        (GERMAN, (GERMAN.replace(" [3]", ""), [("【1†L2】", False), ("[2]", True)], False)),
        *((refusal, (refusal, [("[1]", True)][: refusal.count("[1]")], True)) for refusal in REFUSALS),
    ):
        assert await ask(path, Rag(retriever, LargeModel(written), k=2), folder) == expected


@pytest.mark.parametrize("path", PATHS)
async def test_questions_on_the_same_passages_share_their_prompt_on_every_path(path: str, folder: Path) -> None:
    model = LargeModel(WRITTEN)
    rag: Any = Rag(AllPassages(folder), model, k=2)
    for question in QUESTIONS:
        await ask(path, rag, folder, question)
    before = {prompt.partition(next(each for each in QUESTIONS if each in prompt))[0] for prompt, _ in model.asked}
    assert [text.endswith("\n\nQuestion: ") and SYSTEM in text for text in before] == [True]


def prefilled(ask: Callable[[str], int]) -> list[int]:
    return [ask(question) for question in QUESTIONS]


def test_a_second_question_on_the_same_passages_prefills_only_itself(folder: Path) -> None:
    model = LargeModel()
    rag = Rag(AllPassages(folder), model, passage_cache_tokens=100_000)
    first, second = prefilled(lambda question: rag.ask(question, max_new_tokens=4).steps.prefill_tokens)
    assert first > 550 > 150 > second
    with served(model, folder) as (service, client):
        service.collections["docs"].rag.retriever = AllPassages(folder)
        cached = prefilled(
            lambda question: client.post(
                "/v1/chat/completions",
                json=BODY | {"messages": [{"role": "user", "content": question}], "max_tokens": 4},
            ).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        )
    assert cached[0] == 0
    assert cached[1] > 450


class AllPassages:
    """Finds the same passages in the same order for every question."""

    def __init__(self, folder: Path) -> None:
        self._retriever = Retriever.open(folder)

    def search(self, question: str, k: int = 5) -> list[Passage]:
        return sorted(self._retriever.search(QUESTION, k), key=lambda passage: passage.start)


class Waiting(LargeModel):
    """Writes nothing before a condition holds, so that a test decides whether the quote comes first.

    Args:
        condition: is polled for ten seconds at most.
    """

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__(WRITTEN)
        self.condition = condition

    def stream(self, *arguments: Any, **parameters: Any) -> Stream:
        stream = super().stream(*arguments, **parameters)
        stream._remaining = self._wait(stream._remaining)
        return stream

    def _wait(self, steps: Iterator[Step]) -> Iterator[Step]:
        for _ in range(1000):
            if self.condition():
                break
            sleep(0.01)
        yield from steps


def test_the_quote_is_the_best_line_of_the_passages(rag: Rag, tiny: LanguageModel) -> None:
    quote: Any = rag.stream(QUESTION).quote
    assert (quote.text, quote.source, quote.location, quote.kind) == (TEXTS[2], "bees.pdf", "page 3", "verbatim")
    assert rag.stream("What does a ticket to Lisbon cost?").quote is None, "extractive would refuse"
    assert (
        rag.stream("And on a summer's day?", context=TurnContext([{"role": "user", "content": QUESTION}])).quote
        is not None
    )
    for other in (
        Rag(rag.retriever, rag.language_model, quote_first=False),
        Rag(rag.retriever, tiny),
        Rag(rag.retriever),
    ):
        assert other.stream(QUESTION, max_new_tokens=4).quote is None


def test_the_first_chunk_of_a_stream_has_the_quote_unless_the_text_comes_earlier(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Waiting(lambda: all(job._unsent is None for job in service.queue._running))
    with served(model, folder) as (service, client):
        first, *later = chunks(client)
        assert not any("quote" in chunk for chunk in later)
        note = first["quote"]["url_citation"]
        assert (note["cited_text"], note["location"], note["kind"]) == (TEXTS[2], "p. 3", "verbatim")
        assert first["passages"][note["passage"] - 1]["id"] == note["passage_id"]
        assert not any("quote" in chunk for chunk in chunks(client, stream_options={}))
        is_written = Event()
        monkeypatch.setattr("antiphon.pipelines.request_plan.best_quote", lambda *_: is_written.wait(30))
        model.condition = lambda: True
        first, *later = chunks(client)
        is_written.set()
    assert "quote" not in first
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in later if each["choices"]) == SHOWN


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_the_terminal_shows_the_quote_before_the_answer(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    is_shown = lambda: not any(thread.name == "quote" for thread in threading.enumerate())  # noqa: E731
    load = lambda *_: Waiting(is_shown)  # noqa: E731
    monkeypatch.setattr(f"antiphon.pipelines.cli.{command}.prepare_model", lambda *_, **__: load)
    arguments = [
        command,
        *([QUESTION] if command == "ask" else []),
        "--index",
        str(folder),
        "--model",
        "large",
        "--k",
        "2",
    ]

    def run(*more: str) -> str:
        done = CliRunner().invoke(app, [*arguments, *more], input=f"{QUESTION}\n")
        assert done.exit_code == 0, done.output
        return done.stdout

    shown = run()
    assert f"Quoted from bees.pdf, p. 3:\n  “{TEXTS[2]}”\n\n{SHOWN}\n" in shown
    assert "Named by the model\n  [1] bees.pdf, p. 3: “" in shown
    assert "” (shares no word with the sentence that names it)\n" in shown
    assert "Quoted from" not in run("--no-quote")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Here: {passages}\nAsked: {question}")
    assert SHOWN in run("--prompt", str(prompt))


@pytest.mark.parametrize("command", ["ask", "chat", "serve", "mcp"])
def test_a_prompt_without_its_places_or_for_a_model_that_quotes_is_refused(
    command: str, folder: Path, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt.txt"
    question = [QUESTION] if command == "ask" else []
    for text, model, message in (
        ("{passages}", "smollm2", "has no {question}; write"),
        ("{passages} {question}", "reader", "The model 'reader' takes no prompt of yours: lines of the passages"),
    ):
        prompt.write_text(text)
        options = ["--index", str(folder), "--model", model, "--prompt", str(prompt)]
        done = CliRunner().invoke(app, [command, *question, *options])
        assert (done.exit_code, message in " ".join(done.stderr.split())) == (2, True), done.output
