"""Fixtures of the tests of the page: a browser, and a server with two collections whose model writes known answers."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.pipelines.rag import Rag
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.integrations.scripted_model import ScriptedModel
from tests.pipelines.server.live_server import live_server
from tests.retrieval.pdf_files import lines, pages_of, shown

KEYS = "How often are the keys rotated?"
GUIDE = "When is the lock of the gate oiled?"
UNKNOWN = "Who won the cup?"
STYLED = "Why do bees dance?"
LONG = "Tell a long story."
ANSWERS = {
    KEYS: "The keys of the archive are rotated once a year. That is all.",
    GUIDE: "The lock of the gate is oiled in spring, before the visitors come.",
    UNKNOWN: "The passages do not say.",
    STYLED: "Because **bees** count, see `dance.py` and [1].",
    LONG: "Once upon a time there was a bee. " * 2000,
}
"""The answer to each question."""

HANDBOOK = (
    *(f"Rule {number} of the archive is not about doors." for number in range(1, 6)),
    "The keys of the archive are rotated once a year. Old keys are destroyed.",
    *(f"Rule {number} of the archive is not about windows." for number in range(6, 40)),
)
GUIDE_PAGE = ("The lock of the gate is oiled in spring,", "before the visitors come.")


def scripted(prompt: str) -> str:
    """Return the answer to the last question of a prompt."""
    last = max(ANSWERS, key=prompt.rfind)
    return ANSWERS[last] if last in prompt else "I cannot say."


def served_collections(folder: Path, model: Any) -> list[Collection]:
    """Return a collection that can be changed and one that is read-only."""
    (folder / "guide.pdf").write_bytes(pages_of(shown(lines("A guide.")), shown(lines(*GUIDE_PAGE))))
    passages = [Passage.at("docs/handbook.md", 100 * place, text) for place, text in enumerate(HANDBOOK)]
    passages.append(Passage.at(str(folder / "guide.pdf"), 8, "\n".join(GUIDE_PAGE), {"page": "2"}))
    index_passages(passages, folder / "handbook", HashEmbedder())
    index_passages([Passage.at("notes.txt", 0, "Honey keeps for years.")], folder / "notes", HashEmbedder())
    uploads = folder / "uploads"
    return [
        Collection("handbook", Rag(Retriever.open(folder / "handbook"), model, k=3), uploads),
        Collection("notes", Rag(Retriever.open(folder / "notes"), model, k=3)),
    ]


@contextmanager
def library(folder: Path, **settings: Any) -> Iterator[str]:
    """Serve the collections and yield the address."""
    model = ScriptedModel(answer=scripted)
    service = make_service(
        model,
        ServerSettings(**settings),
        name="scripted",
        collections=served_collections(folder, model),
    )
    with live_server(create_app(service)) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; without it the tests are skipped."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("chromium is not on the path: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the collections "handbook" and "notes"."""
    with library(tmp_path_factory.mktemp("library")) as url:
        yield url


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page in a new browser profile; no script may fail, and nothing may break the page's policy."""
    with open_page(browser, address) as opened:
        yield opened


@contextmanager
def open_page(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """Open the page in a new browser profile."""
    context = browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **options})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if "Policy" in message.text else None)
    opened.goto(address)
    opened.wait_for_selector("#model option", state="attached")
    yield opened
    context.close()
    assert problems == []


def wait_for_text(page: Any, selector: str, text: str) -> None:
    """Wait for a text; a locator is used because the page's policy forbids evaluating strings as scripts."""
    page.locator(selector, has_text=text).first.wait_for()


def send(page: Any, question: str) -> None:
    """Send a question without waiting for the answer."""
    page.fill("#question", question)
    page.click("#send")


def ask(page: Any, question: str) -> Any:
    """Ask a question, wait for the answer, and return its element."""
    number = page.locator(".turn").count() + 1
    send(page, question)
    page.locator(f".turn:nth-child({number}) .actions .caption", has_text=" s").first.wait_for()
    wait_for_text(page, "#status", "Answered")
    return page.locator(".turn").last


def open_quote(page: Any, turn: Any) -> None:
    """Open the first quote of an answer in its document: through its number and its card."""
    turn.locator(".marker").first.click()
    page.click("#source-open")
