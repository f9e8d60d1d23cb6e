"""The page in a real browser: questions, coloured runs, citations, files; and hostile documents, which stay text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.app import create_app
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.pipelines.server.conftest import tiny_service
from tests.pipelines.server.listening import listening

INJECTIONS = (
    "<script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg onload=window.hit=1>",
    "<svg><script>window.hit=1</script></svg>",
    "<iframe src=javascript:parent.hit=1>",
    "<iframe srcdoc='<script>parent.hit=1</script>'>",
    "<body onload=window.hit=1>",
    "<input autofocus onfocus=window.hit=1>",
    "<details open ontoggle=window.hit=1>",
    "<video><source onerror=window.hit=1></video>",
    "<audio src=x onerror=window.hit=1>",
    "<object data=javascript:window.hit=1>",
    "<embed src=javascript:window.hit=1>",
    "<a href=javascript:window.hit=1 autofocus>x</a>",
    "<math><mi xlink:href=javascript:window.hit=1>x</mi></math>",
    "<link rel=stylesheet href=javascript:window.hit=1>",
    "<style>@import 'javascript:window.hit=1'</style>",
    "<meta http-equiv=refresh content='0;url=javascript:window.hit=1'>",
    "<base href=javascript:window.hit=1//>",
    "<form action=javascript:window.hit=1><button>x</button></form>",
    "<marquee onstart=window.hit=1>x</marquee>",
    '"><script>window.hit=1</script>',
    "'-window.hit=1-'",
    "</textarea><script>window.hit=1</script>",
    "</title><script>window.hit=1</script>",
    "<!--><script>window.hit=1</script>-->",
    "<![CDATA[<script>window.hit=1</script>]]>",
    "${window.hit=1}",
    "{{constructor.constructor('window.hit=1')()}}",
    "&lt;script&gt;window.hit=1&lt;/script&gt;",
    "<template><script>window.hit=1</script></template>",
    "\u202e<script>window.hit=1</script>",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no chromium on the path: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def address(typist: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over documents that are injections in text, title and file name."""
    folder = tmp_path_factory.mktemp("page") / "index"
    hostile = [
        Passage.at(f"folder/{each}.txt", 0, f"honey {each} keeps for years", {"title": each}) for each in INJECTIONS
    ]
    index_passages(hostile, folder, HashEmbedder())
    with listening(create_app(tiny_service(typist, folder, max_output_tokens=64, k=len(INJECTIONS)))) as url:
        yield url


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if "Policy" in said.text else None)
    opened.goto(address)
    opened.wait_for_selector("#model option", state="attached")
    yield opened
    context.close()
    assert problems == []


def shows(page: Any, place: str, text: str) -> None:
    """Wait until the page says so there; the page's policy lets no script be made of a text, not even by a test."""
    page.locator(place, has_text=text).wait_for()


QUOTE = """async (texts) => {
    const { Answer } = await import('/static/answer.js');
    const passages = texts.map((each, place) => ({
        id: String(place), source: each, title: each, text: `honey ${each} keeps`, start: 0, end: 9 }));
    const answer = new Answer(document.getElementById('conversation'), texts[0]);
    const runs = texts.map((each, place) => ({
        text: each, drafted: true, passage: place + 1, start: 6, end: 6 + each.length }));
    const annotations = texts.map((each, place) => ({ url_citation: {
        passage: place + 1, title: each, url: each, cited_text: each, passage_start: 6,
        passage_end: 6 + each.length } }));
    answer.take({ passages, runs, choices: [{ delta: { annotations } }] });
}"""
"""Shows an answer that repeats a passage of each of these texts, and cites it."""


def asked(page: Any, question: str) -> Any:
    page.fill("#question", question)
    page.click("#send")
    shows(page, "#status", "Answered")
    return page.locator(".turn").last


def test_a_question_is_answered_and_followed_up(page: Any) -> None:
    page.select_option("#model", "tiny")
    turn = asked(page, "How do bees live?")
    assert turn.locator(".said").inner_text()
    assert "tokens per step" in turn.locator(".figures").inner_text()
    asked(page, "And in winter?")
    assert page.locator(".turn").count() == 2
    page.check("#beside")
    beside = asked(page, "And plainly?")
    texts = beside.locator(".said").all_inner_texts()
    assert len(texts) == 2
    assert texts[0] == texts[1], "drafting changes no word"
    page.click("#again")
    assert page.locator(".turn").count() == 0


def test_runs_show_their_passage_and_nothing_of_a_document_is_markup(page: Any, address: str) -> None:
    """The answer's events are the server's own, but for the text: every passage is quoted whole."""
    stored = page.evaluate("fetch('/documents').then((answer) => answer.json())")["data"]
    assert len(stored) == len(INJECTIONS)
    page.evaluate(QUOTE, list(INJECTIONS))
    runs = page.locator(".run")
    assert runs.count() == len(INJECTIONS)
    for place, injection in enumerate(INJECTIONS):
        runs.nth(place).focus()
        page.keyboard.press("Enter")
        assert page.locator("#text mark").text_content() == injection
        assert page.locator("#place").text_content().startswith(f"[{place + 1}] {injection}")
    page.locator(".cited button").nth(3).click()
    assert page.locator("#text mark").text_content() == INJECTIONS[3]
    turn = asked(page, "How long does honey keep?")
    assert turn.locator(".said").inner_text()
    assert page.locator("script").count() == 1, "the page's own"
    assert page.locator("#conversation :is(script, img, svg, iframe, object, embed, style, link)").count() == 0
    assert page.evaluate("window.hit") is None


def test_files_are_added_listed_and_removed(page: Any, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=window.hit=1>.md"
    hostile.write_text("Wax comes from young bees.")
    page.set_input_files("#files", [hostile])
    shows(page, "#told", "Added 1.")
    line = page.locator("#list li", has_text="img src=x onerror=window.hit=1>.md (1 passage)")
    line.wait_for()
    line.locator("button").click()
    page.wait_for_selector("#list li button", state="detached")
    assert page.evaluate("window.hit") is None


DROP = """() => {
    const data = new DataTransfer();
    data.items.add(new File(['x'], 'program.exe'));
    document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }));
}"""


def test_a_dropped_file_that_cannot_be_read_says_why(page: Any) -> None:
    page.evaluate(DROP)
    shows(page, "#told", "Files of this kind are not read")


def test_a_file_that_is_dropped_before_the_documents_are_listed_waits_for_the_list(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    waiting: list[Any] = []
    page.route("**/documents", lambda route: route.continue_() if waiting else waiting.append(route))
    page.goto(address)
    page.wait_for_selector("#model option", state="attached")
    page.wait_for_timeout(200)
    [route] = waiting
    page.evaluate(DROP)
    route.continue_()
    shows(page, "#told", "Files of this kind are not read")
    context.close()


def test_dark_light_and_small_screens(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    page.locator("#theme[aria-pressed=true]").wait_for()  # the page is told of the system's wish after the test is
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.click("#theme")
    assert page.evaluate(ground) != dark
    assert page.get_attribute("#theme", "aria-pressed") == "false"
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth <= 360"), "nothing has to be scrolled sideways"
    unnamed = "[...document.querySelectorAll('button, input, select, textarea')].filter((each) => !each.labels?.length"
    assert page.evaluate(f"{unnamed} && !each.textContent.trim() && !each.ariaLabel).length") == 0
