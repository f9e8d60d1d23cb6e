"""The page when something goes wrong: the connection, the browser's storage, or somebody's patience."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pipelines.server.test_page import address, browser, shows

__all__ = ["address", "browser"]

CHAT = "**/v1/chat/completions"
HALF = 'data: {"choices": [{"delta": {"content": "Half an"}}]}\n\n'
NO_STORAGE = """for (const name of ['localStorage', 'sessionStorage'])
    Object.defineProperty(window, name, { get() { throw new DOMException('not here', 'SecurityError'); } });"""
COMPOSING = """document.getElementById('question').dispatchEvent(
    new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }))"""


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context()
    opened = context.new_page()
    opened.goto(address)
    opened.wait_for_selector("#model option", state="attached")
    opened.select_option("#model", "tiny")
    yield opened
    context.close()


def ask(page: Any, question: str) -> None:
    page.fill("#question", question)
    page.click("#send")


def test_a_server_that_cannot_be_reached_is_named_and_the_question_kept(page: Any) -> None:
    page.route(CHAT, lambda route: route.abort())
    ask(page, "How do bees live?")
    shows(page, "#status", "The server cannot be reached.")
    assert page.input_value("#question") == "How do bees live?"


def test_an_answer_that_breaks_off_is_no_answer(page: Any) -> None:
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=HALF))
    ask(page, "How do bees live?")
    shows(page, "#status", "The connection broke.")
    assert page.locator(".said").inner_text() == "Half an"
    page.unroute(CHAT)
    with page.expect_request(CHAT) as sent:
        page.click("#send")
    assert len(json.loads(sent.value.post_data)["messages"]) == 1, "what broke off is not said again"


def test_a_new_conversation_ends_the_answer_under_way_and_forgets_it(page: Any) -> None:
    waiting: list[Any] = []
    page.route(CHAT, lambda route: waiting.append(route))
    ask(page, "How do bees live?")
    shows(page, "#status", "Answering")
    page.click("#again")
    assert page.locator(".turn").count() == 0
    assert page.locator("#status").inner_text() == ""
    assert page.is_enabled("#send")
    page.unroute(CHAT)
    with page.expect_request(CHAT) as sent:
        ask(page, "And wasps?")
    shows(page, "#status", "Answered")
    assert [each["content"] for each in json.loads(sent.value.post_data)["messages"]] == ["And wasps?"]


def test_a_word_that_is_being_composed_is_not_sent(page: Any) -> None:
    page.fill("#question", "みつばち")
    page.evaluate(COMPOSING)
    assert page.input_value("#question") == "みつばち"
    assert page.locator(".turn").count() == 0


def test_a_browser_that_keeps_nothing_shows_the_page(browser: Any, address: str) -> None:
    context = browser.new_context()
    context.add_init_script(NO_STORAGE)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#list li")
    page.click("#theme")
    page.select_option("#model", "tiny")
    ask(page, "How do bees live?")
    shows(page, "#status", "Answered")
    context.close()


def test_the_page_of_addresses_misses_nothing(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    missed: list[str] = []
    page.on("response", lambda response: missed.append(response.url) if response.status >= 400 else None)
    page.goto(f"{address}/docs")
    page.get_by_text("/v1/chat/completions").wait_for()
    page.wait_for_timeout(300)
    assert missed == []
    context.close()
