"""The conversation on the page: stop, copy, edit, ask again, and the history in the browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.server.page_fixtures import (
    GUIDE,
    KEYS,
    LONG,
    STYLED,
    UNKNOWN,
    address,
    ask,
    browser,
    library,
    page,
    send,
    wait_for_text,
)

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

__all__ = ["address", "browser", "page"]

CHAT = "**/v1/chat/completions"
SAVED = "localStorage.getItem('antiphon-conversations') ?? ''"


def questions(page: Any) -> list[str]:
    """Return the questions of the conversation."""
    found: list[str] = page.locator(".question").all_inner_texts()
    return found


def sent_questions(request: Any) -> list[str]:
    """Return the messages of the user in a request."""
    return [each["content"] for each in json.loads(request.post_data)["messages"] if each["role"] == "user"]


def test_an_answer_has_its_quotes_with_the_numbers_of_their_sources(page: Any) -> None:
    turn = ask(page, KEYS)
    assert turn.locator(".quote").inner_text() == "The keys of the archive are rotated once a year"
    number = turn.locator(".marker").inner_text()
    shown = turn.locator(".answer-text").inner_text()
    assert shown == f"The keys of the archive are rotated once a year.{number} That is all."
    assert "handbook.md" in turn.locator(".source-name").inner_text()
    assert "Sources" in turn.inner_text()


def test_an_unanswered_question_is_shown_as_such(page: Any) -> None:
    turn = ask(page, UNKNOWN)
    assert "No answer in these documents" in turn.inner_text()
    assert "Searched the documents in" in turn.inner_text()
    assert turn.locator(".source").count() == 3
    assert "uoted" not in turn.inner_text()


def test_stop_ends_the_answer_and_keeps_its_beginning(page: Any) -> None:
    send(page, LONG)
    page.locator(".answer-text:not(:empty)").wait_for()
    page.click("#stop")
    wait_for_text(page, "#status", "Stopped")
    assert page.locator("#send").is_visible()
    assert not page.locator("#stop").is_visible()
    with page.expect_request(CHAT) as sent:
        ask(page, KEYS)
    assert sent_questions(sent.value) == [LONG, KEYS]


def test_conversations_are_kept_reopened_and_deleted(page: Any) -> None:
    ask(page, KEYS)
    ask(page, UNKNOWN)
    page.click("#new-conversation")
    page.select_option("#model", "scripted+notes")
    ask(page, STYLED)
    page.reload()
    titles = page.locator(".history-title")
    titles.nth(1).wait_for()
    assert titles.all_inner_texts() == [STYLED, KEYS]
    titles.nth(1).click()
    assert questions(page) == [KEYS, UNKNOWN]
    assert page.locator("#model").input_value() == "scripted+handbook"
    assert page.locator(".refusal").count() == 1
    page.locator(".source-quote").click()
    page.locator("#passage-body mark").wait_for()
    assert page.locator("#passage-body mark").inner_text() == "The keys of the archive are rotated once a year"
    page.keyboard.press("Escape")
    with page.expect_request(CHAT) as sent:
        ask(page, GUIDE)
    assert sent_questions(sent.value) == [KEYS, UNKNOWN, GUIDE], "the conversation goes on"
    page.get_by_label(f"Delete the conversation: {STYLED}").click()
    assert titles.all_inner_texts() == [KEYS]
    assert STYLED not in page.evaluate(SAVED)
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#history-clear")
    assert titles.count() == 0
    assert page.evaluate(SAVED) == "[]"


def test_nothing_is_saved_if_the_user_does_not_want_it(page: Any) -> None:
    assert "private documents" in page.locator("#history").inner_text()
    page.uncheck("#history-save")
    ask(page, KEYS)
    assert page.evaluate(SAVED) == ""
    page.reload()
    page.locator("#history-save:not(:checked)").wait_for()


def test_the_key_is_asked_for_and_never_saved_with_conversations(browser: Any, tmp_path: Path) -> None:
    key = "a-secret-key"
    with library(tmp_path, api_keys=(key,)) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.locator("#unlock").wait_for()
        assert not page.locator("#history").is_visible(), "without a key they stay hidden"
        page.fill("#key", key)
        page.keyboard.press("Enter")
        page.wait_for_selector("#model option", state="attached")
        ask(page, KEYS)
        assert key not in page.evaluate("JSON.stringify(localStorage)")
        assert key not in page.content()
        page.reload()
        page.locator(".history-title").wait_for()
        context.close()
