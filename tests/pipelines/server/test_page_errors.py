"""The web page when the connection breaks, the browser has no storage, or the user stops an answer."""

import json
from typing import Any

import pytest

from tests.pipelines.server.page_fixtures import KEYS, send, wait_for_text

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


CHAT = "**/v1/chat/completions"
HALF = 'data: {"choices": [{"delta": {"content": "Half an"}}]}\n\n'
NO_STORAGE = """for (const name of ['localStorage', 'sessionStorage'])
    Object.defineProperty(window, name, { get() { throw new DOMException('not here', 'SecurityError'); } });"""


def test_an_unreachable_server_is_reported_and_the_question_kept(page: Any) -> None:
    page.route(CHAT, lambda route: route.abort())
    send(page, "How do bees live?")
    wait_for_text(page, "#status", "The server cannot be reached.")
    assert page.input_value("#question") == "How do bees live?"


def test_an_answer_that_breaks_off_is_not_part_of_the_conversation(page: Any) -> None:
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=HALF))
    send(page, "How do bees live?")
    wait_for_text(page, "#status", "The connection broke.")
    assert page.locator(".answer-text").inner_text() == "Half an"
    page.unroute(CHAT)
    with page.expect_request(CHAT) as sent:
        page.click("#send")
    assert len(json.loads(sent.value.post_data)["messages"]) == 1, "the interrupted answer is not sent again"


def test_the_page_works_without_browser_storage(browser: Any, address: str) -> None:
    context = browser.new_context()
    context.add_init_script(NO_STORAGE)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#document-list li")
    page.click("#settings-open")
    page.click("#theme")
    page.keyboard.press("Escape")
    send(page, KEYS)
    wait_for_text(page, "#status", "Answered")
    wait_for_text(page, ".history-title", KEYS)
    context.close()


def test_the_list_of_endpoints_loads_completely(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    failed: list[str] = []
    page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
    page.goto(f"{address}/docs")
    page.get_by_text("/v1/chat/completions").wait_for()
    page.wait_for_timeout(300)
    assert failed == []
    context.close()
