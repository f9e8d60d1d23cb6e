"""The web page in a browser: questions, coloured segments, citations, uploads; hostile documents stay text."""

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
from tests.pipelines.server.live_server import live_server

pytestmark = pytest.mark.slow

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
        pytest.skip("chromium is not on the path: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def address(typist: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve documents with injections in text, title and file name."""
    folder = tmp_path_factory.mktemp("page") / "index"
    hostile = [
        Passage.at(f"folder/{each}.txt", 0, f"honey {each} keeps for years", {"title": each}) for each in INJECTIONS
    ]
    index_passages(hostile, folder, HashEmbedder())
    with live_server(create_app(tiny_service(typist, folder, max_output_tokens=64, k=len(INJECTIONS)))) as url:
        yield url


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1100, "height": 800})
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
    page.locator(selector, has_text=text).wait_for()


QUOTE = """async (texts) => {
    const { Answer } = await import('/static/answer.js');
    const passages = texts.map((each, index) => ({
        id: String(index), source: each, title: each, text: `honey ${each} keeps`, start: 0, end: 9 }));
    const answer = new Answer(document.getElementById('conversation'), texts[0]);
    const segments = texts.map((each, index) => ({
        text: each, drafted: true, passage: index + 1, start: 6, end: 6 + each.length }));
    const annotations = texts.map((each, index) => ({ url_citation: {
        passage: index + 1, title: each, url: each, cited_text: each, passage_start: 6,
        passage_end: 6 + each.length } }));
    answer.push({ passages, segments, choices: [{ delta: { annotations } }] });
}"""
"""Shows an answer that copies from and cites one passage for each of these texts."""


QUOTED_ONLY = """async () => {
    const { Answer } = await import('/static/answer.js');
    const usage = { completion_tokens: 0, prompt_tokens_details: { response_prefix_tokens: 0 } };
    const metrics = { steps: 0, tokens_per_step: 0, seconds: 1.3, time_to_first_token_seconds: 1.3 };
    new Answer(document.getElementById('conversation'), '').push({ usage, metrics });
}"""
"""Shows the figures of an answer that no model has generated."""


EMOJI = """async () => {
    const { showPassage } = await import('/static/answer.js');
    showPassage(1, { source: 'a.md', title: '', text: '🐝👩‍👧 Honey 𝒌eeps.', start: 0 }, 5, 16);
}"""
"""Shows the characters 5 to 16 of a passage with characters that have two UTF-16 units."""


def ask(page: Any, question: str) -> Any:
    """Ask a question, wait for the answer, and return its element."""
    page.fill("#question", question)
    page.click("#send")
    wait_for_text(page, "#status", "Answered")
    return page.locator(".turn").last


def test_a_question_is_answered_and_followed_up(page: Any) -> None:
    page.select_option("#model", "tiny")
    turn = ask(page, "How do bees live?")
    assert turn.locator(".answer-text").inner_text()
    assert "tokens per step" in turn.locator(".stats").inner_text()
    ask(page, "And in winter?")
    assert page.locator(".turn").count() == 2
    page.check("#compare")
    compared = ask(page, "And plainly?")
    texts = compared.locator(".answer-text").all_inner_texts()
    assert len(texts) == 2
    assert texts[0] == texts[1], "drafting changes no word"
    page.click("#new-conversation")
    assert page.locator(".turn").count() == 0


def test_an_answer_without_a_forward_pass_is_shown_as_quoted(page: Any) -> None:
    page.evaluate(QUOTED_ONLY)
    assert page.locator(".stats").inner_text() == "quoted from the documents, without a language model; 1.3 s"


def test_segments_show_their_passage_and_document_text_is_never_markup(page: Any, address: str) -> None:
    """Show an answer that copies every passage, made of the same events as the server sends."""
    stored = page.evaluate("fetch('/documents').then((answer) => answer.json())")["data"]
    assert len(stored) == len(INJECTIONS)
    page.evaluate(QUOTE, list(INJECTIONS))
    segments = page.locator(".segment")
    assert segments.count() == len(INJECTIONS)
    for index, injection in enumerate(INJECTIONS):
        segments.nth(index).focus()
        page.keyboard.press("Enter")
        assert page.locator("#passage-text mark").text_content() == injection
        assert page.locator("#passage-location").text_content().startswith(f"[{index + 1}] {injection}")
    page.locator(".cited button").nth(3).click()
    assert page.locator("#passage-text mark").text_content() == INJECTIONS[3]
    turn = ask(page, "How long does honey keep?")
    assert turn.locator(".answer-text").inner_text()
    assert page.locator("script").count() == 1, "the page's own script"
    assert page.locator("#conversation :is(script, img, svg, iframe, object, embed, style, link)").count() == 0
    assert page.evaluate("window.hit") is None


def test_offsets_are_right_after_emojis(page: Any) -> None:
    page.evaluate(EMOJI)
    assert page.locator("#passage-text mark").text_content() == "🐝👩‍👧 Honey 𝒌eeps."[5:16] == "Honey 𝒌eeps"
    assert page.locator("#passage-text").text_content() == "🐝👩‍👧 Honey 𝒌eeps."


def test_thinking_is_folded_above_the_answer(page: Any) -> None:
    found = page.evaluate(
        """async () => {
            const { Answer } = await import("/static/answer.js");
            const root = document.createElement("div"), answer = new Answer(root);
            answer.push({ choices: [{ delta: { reasoning_content: "<b>Hm" } }] });
            answer.push({ choices: [{ delta: { reasoning_content: "." } }] });
            answer.push({ choices: [{ delta: { content: "So." } }] });
            const folded = root.querySelector("details");
            return [folded.open, folded.querySelector("p").textContent, folded.nextSibling.textContent,
                root.querySelector("b")];
        }"""
    )
    assert found == [False, "<b>Hm.", "So.", None]


def test_files_are_added_listed_and_removed(page: Any, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=window.hit=1>.md"
    hostile.write_text("Wax comes from young bees.")
    page.set_input_files("#files", [hostile])
    wait_for_text(page, "#documents-status", "Added 1.")
    line = page.locator("#document-list li", has_text="img src=x onerror=window.hit=1>.md (1 passage)")
    line.wait_for()
    line.locator("button").click()
    page.wait_for_selector("#document-list li button", state="detached")
    assert page.evaluate("window.hit") is None


DROP = """() => {
    const data = new DataTransfer();
    data.items.add(new File(['x'], 'program.exe'));
    document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }));
}"""


def test_a_dropped_file_that_cannot_be_read_shows_the_reason(page: Any) -> None:
    page.evaluate(DROP)
    wait_for_text(page, "#documents-status", "Files of this type are not supported")


def test_a_file_dropped_before_the_documents_are_listed_waits_for_the_list(browser: Any, address: str) -> None:
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
    wait_for_text(page, "#documents-status", "Files of this type are not supported")
    context.close()


def test_dark_light_and_small_screens(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    page.locator("#theme[aria-pressed=true]").wait_for()  # the page receives the emulated setting asynchronously
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate(background) != dark
    assert page.get_attribute("#theme", "aria-pressed") == "false"
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth <= 360"), "no horizontal scrolling"
    unnamed = "[...document.querySelectorAll('button, input, select, textarea')].filter((each) => !each.labels?.length"
    assert page.evaluate(f"{unnamed} && !each.textContent.trim() && !each.ariaLabel).length") == 0
