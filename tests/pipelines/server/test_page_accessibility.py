"""Accessibility of the page, checked with axe in every state: light on a wide screen, dark on a small one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

from tests.pipelines.server.page_fixtures import (
    GUIDE,
    KEYS,
    STYLED,
    UNKNOWN,
    ask,
    open_quote,
    send,
    wait_for_text,
)

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


SERIOUS = ("serious", "critical")
CHAT = "**/v1/chat/completions"
THINKING = (
    'data: {"passages": [{"id": "x", "source": "a.md", "title": "", "location": ""}], "quote": {"url_citation":'
    ' {"passage": 1, "cited_text": "Wax.", "location": "line 1"}}, "choices": []}\n\n'
    'data: {"choices": [{"delta": {"reasoning_content": "Let me see."}}]}\n\n'
    'data: {"choices": [{"delta": {"content": "# Half\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n```py\\nan"}}]}\n\n'
)


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1100), pytest.param("dark", 390, marks=pytest.mark.exhaustive)]
)
def test_axe_finds_no_serious_violation_in_any_state(
    browser: Any, address: str, scheme: str, width: int, tmp_path: Path
) -> None:
    context = browser.new_context(bypass_csp=True, color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(address)
    page.locator("#document-list li").first.wait_for(state="attached")
    found = {name: violations(page) for name in states(page, tmp_path)}
    context.close()
    assert {name: each for name, each in found.items() if each} == {}
    assert len(found) == 13


def states(page: Any, folder: Path) -> Iterator[str]:
    """Bring the page into one state after the other, and yield the name of each."""
    yield "empty"
    menu = page.locator("#menu")
    if menu.is_visible():
        menu.click()
    (folder / "a.md").write_text("Wax comes from young bees.")
    (folder / "b.exe").write_text("x")
    page.set_input_files("#files", [folder / "a.md", folder / "b.exe"])
    wait_for_text(page, "#documents-status", "Added 1. Not added: 1.")
    yield "documents added and skipped"
    page.keyboard.press("Escape")
    for question in (KEYS, STYLED, UNKNOWN):
        ask(page, question)
    yield "answered, and without an answer"
    page.locator(".turn").first.get_by_text("Edit").click()
    yield "a question is edited"
    page.keyboard.press("Escape")
    page.click("#speed")
    page.locator(".turn").first.get_by_text("Compare with plain decoding").click()
    page.locator(".result").wait_for()
    yield "speed view with a comparison"
    page.click("#speed")
    page.locator(".marker").first.click()
    yield "card of a source"
    page.click("#source-open")
    page.locator("#passage-body mark").wait_for()
    yield "passage in its document"
    page.keyboard.press("Escape")
    open_quote(page, ask(page, GUIDE))
    page.locator("canvas").wait_for()
    yield "passage on the page of a PDF file"
    page.keyboard.press("Escape")
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=THINKING))
    send(page, KEYS)
    wait_for_text(page, "#status", "The connection broke.")
    page.locator(".thinking summary").click()
    yield "thinking, and a broken connection"
    page.unroute(CHAT)
    if menu.is_visible():
        menu.click()
    yield "history"
    page.click("#settings-open")
    yield "settings"
    page.keyboard.press("Escape")
    page.locator(".document-name", has_text="handbook.md").click()
    page.locator("#passage-body p").first.wait_for()
    yield "document"
    page.keyboard.press("Escape")
    page.route("**/v1/models", lambda route: route.fulfill(status=401, json={"error": {"message": "A key is needed."}}))
    page.reload()
    page.locator("#unlock").wait_for()
    yield "the key is asked for"


def violations(page: Any) -> list[str]:
    """Return the serious violations with their descriptions and elements."""
    found = Axe().run(page).response
    assert len(found["passes"]) > 10, "axe has checked the page"
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes']][:4]}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
    ]
