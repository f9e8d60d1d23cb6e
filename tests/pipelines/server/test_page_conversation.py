"""The conversation on the page: stop, copy, edit, ask again, and the history in the browser."""

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
    ask,
    library,
    open_page,
    open_quote,
    send,
    wait_for_text,
)

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


CHAT = "**/v1/chat/completions"
SAVED = "localStorage.getItem('antiphon-conversations') ?? ''"


def questions(page: Any) -> list[str]:
    """Return the questions of the conversation."""
    found: list[str] = page.locator(".question").all_inner_texts()
    return found


def sent_questions(request: Any) -> list[str]:
    """Return the messages of the user in a request."""
    return [each["content"] for each in json.loads(request.post_data)["messages"] if each["role"] == "user"]


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


def test_an_answer_is_copied_as_text(browser: Any, address: str) -> None:
    with open_page(browser, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        ask(page, KEYS).get_by_text("Copy").click()
        wait_for_text(page, "#status", "Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "The keys of the archive are rotated once a year. That is all."


def test_an_edited_question_is_asked_from_its_place_on(page: Any) -> None:
    for question in (UNKNOWN, KEYS, STYLED):
        ask(page, question)
    page.locator(".turn").nth(1).get_by_text("Edit").click()
    page.keyboard.press("Escape")
    assert questions(page) == [UNKNOWN, KEYS, STYLED], "Escape leaves everything as it is"
    page.locator(".turn").nth(1).get_by_text("Edit").click()
    field = page.get_by_label("Edit the question")
    assert field.input_value() == KEYS
    field.fill(GUIDE)
    with page.expect_request(CHAT) as sent:
        page.get_by_text("Ask again from here").click()
    wait_for_text(page, "#status", "Answered")
    assert questions(page) == [UNKNOWN, GUIDE]
    assert sent_questions(sent.value) == [UNKNOWN, GUIDE]


def test_the_last_question_is_asked_again_with_other_words(page: Any) -> None:
    ask(page, UNKNOWN)
    ask(page, KEYS)
    assert page.get_by_text("Try again").locator("visible=true").count() == 1, "only the last question"
    with page.expect_request(CHAT) as sent:
        page.get_by_text("Try again").locator("visible=true").click()
    wait_for_text(page, "#status", "Answered")
    body = json.loads(sent.value.post_data)
    assert sent_questions(sent.value) == questions(page) == [UNKNOWN, KEYS]
    assert body["temperature"] > 0
    assert isinstance(body["seed"], int)


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
    assert questions(page) == [STYLED], "the conversation that the address names"
    first = page.url
    titles.nth(1).click()
    page.locator(".refusal").wait_for()
    assert questions(page) == [KEYS, UNKNOWN]
    page.go_back()
    page.locator(".refusal").wait_for(state="detached")
    assert (page.url, questions(page)) == (first, [STYLED])
    page.go_forward()
    page.locator(".refusal").wait_for()
    assert page.locator("#model").input_value() == "scripted+handbook"
    assert page.locator(".refusal").count() == 1
    open_quote(page, page.locator(".turn").first)
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
    page.reload()
    wait_for_text(page, "#status", "This conversation is not saved in this browser.")
    page.click("#new-conversation")
    assert "#" not in page.url


def test_nothing_is_saved_if_the_user_does_not_want_it(page: Any) -> None:
    page.click("#settings-open")
    assert "private documents" in page.locator("#settings").inner_text()
    page.uncheck("#history-save")
    ask(page, KEYS)
    assert page.evaluate(SAVED) == ""
    page.reload()
    page.locator("#history-save:not(:checked)").wait_for(state="attached")


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


def test_everything_is_reached_and_used_with_the_keyboard_alone(page: Any) -> None:
    page.focus("#question")
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    assert page.input_value("#question") == "first line\n"
    page.fill("#question", "")
    page.keyboard.type(KEYS)
    page.keyboard.press("Enter")
    wait_for_text(page, "#status", "Answered")
    names: list[str] = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            continue  # after the last element of the page
        names.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        is_shown_around = page.evaluate("Boolean(document.activeElement.closest('#ask, .actions'))")
        assert ring != "none" or is_shown_around, f"the focus on {names[-1]} is visible"
        if names[-1] == "question":
            break
    for expected in (
        "Speed view",
        "Settings",
        "document-search",
        "New conversation",
        "files",
        "folder",
        "Edit",
        "Copy",
        "Try again",
    ):
        assert expected in names, f"{expected} is reached with Tab"
    page.locator(".marker").focus()
    page.keyboard.press("Enter")
    page.locator("#source").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator("#source").is_visible()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.locator("#passage-body mark").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator("#passage").is_visible()
    assert page.evaluate("document.activeElement.className") == "marker", "the focus returns"
