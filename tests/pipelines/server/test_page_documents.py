"""Documents on the page: files and folders are added with reasons, and a source opens the passage in its document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.server.page_fixtures import (
    GUIDE,
    HANDBOOK,
    KEYS,
    address,
    ask,
    browser,
    page,
    wait_for_text,
)

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

__all__ = ["address", "browser", "page"]

YELLOW = """(canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let first = -1, count = 0;
    for (let at = 0; at < data.length; at += 4) {
        if (data[at] < 200 || data[at + 1] < 200 || data[at + 2] > 200) continue;
        first = first < 0 ? at / 4 : first;
        count += 1;
    }
    return [first % canvas.width / canvas.width, Math.floor(first / canvas.width) / canvas.height, count];
}"""
"""Returns where the first yellow pixel is, from 0 to 1 of the page, and how many there are."""


def upload_lines(page: Any) -> dict[str, str]:
    """Return the names of the files that were added or not, with what became of them."""
    rows = [each.locator("span").all_inner_texts() for each in page.locator("#upload-list li").all()]
    return dict(rows)


def is_in_view(page: Any, selector: str) -> bool:
    """Return whether an element is inside the visible part of the passage dialog."""
    inner, outer = page.locator(selector).first.bounding_box(), page.locator("#passage-body").bounding_box()
    below = inner["y"] >= outer["y"]
    return bool(below and inner["y"] + inner["height"] <= outer["y"] + outer["height"])


def test_files_are_added_listed_and_removed(page: Any, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=window.hit=1>.md"
    hostile.write_text("Wax comes from young bees.")
    page.set_input_files("#files", [hostile])
    wait_for_text(page, "#documents-status", "Added 1.")
    assert upload_lines(page) == {hostile.name: "Added, 1 passage"}
    line = page.locator("#document-list li", has_text="img src=x onerror=window.hit=1>.md")
    assert "1 passage" in line.inner_text()
    page.get_by_label(f"Remove {hostile.name}").click()
    page.wait_for_selector("#document-list li button", state="detached")
    assert page.evaluate("window.hit") is None


def test_the_chosen_collection_is_asked_listed_and_changed(page: Any) -> None:
    assert page.locator("#model option").all_inner_texts() == ["handbook", "notes", "No documents"]
    wait_for_text(page, "#document-list", "handbook.md")
    assert page.locator("#file-picker").is_visible()
    with page.expect_request("**/documents?collection=notes"):
        page.select_option("#model", "scripted+notes")
    wait_for_text(page, "#document-list", "notes.txt")
    assert "handbook.md" not in page.locator("#document-list").inner_text()
    assert not page.locator("#file-picker").is_visible(), "these documents are read-only"
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, KEYS)
    assert sent.value.post_data_json["model"] == "scripted+notes"
    page.select_option("#model", "scripted")
    page.wait_for_selector("#documents", state="hidden")


def test_a_source_opens_its_passage_between_its_neighbours(page: Any) -> None:
    turn = ask(page, KEYS)
    turn.locator(".source-quote").click()
    page.locator("#passage-body mark").wait_for()
    assert page.locator("#passage-name").inner_text() == "handbook.md"
    assert page.locator("#passage-body mark").inner_text() == "The keys of the archive are rotated once a year"
    assert page.locator(".cited-passage").inner_text() == HANDBOOK[5]
    assert page.locator(".neighbour").all_inner_texts() == [*HANDBOOK[3:5], *HANDBOOK[6:8]]
    assert not page.locator("#passage-views").is_visible(), "a text has no page"
    page.get_by_text("Show more of the document").click()
    page.get_by_text(HANDBOOK[25]).wait_for()
    assert page.locator(".neighbour").all_inner_texts() == [*HANDBOOK[:5], *HANDBOOK[6:26]]
    assert is_in_view(page, "#passage-body mark")
    page.keyboard.press("Escape")
    page.locator("#passage").wait_for(state="hidden")


def test_a_source_in_a_pdf_opens_its_page_with_the_quote_marked(page: Any) -> None:
    turn = ask(page, GUIDE)
    assert "guide.pdf, p. 2" in turn.locator(".source-name").inner_text()
    turn.locator(".marker").first.click()
    canvas = page.get_by_label("Page 2 with the quoted text marked")
    canvas.wait_for()
    left, top, count = canvas.evaluate(YELLOW)
    assert left == pytest.approx(72 / 612, abs=0.02)
    assert top == pytest.approx(1 - 708 / 792, abs=0.02)
    assert count > 5000
    page.click("#view-text")
    assert (
        page.locator("#passage-body mark").inner_text()
        == "The lock of the gate is oiled in spring,\nbefore the visitors come"
    )
    page.click("#view-page")
    assert canvas.is_visible()
    page.click("#passage-close")
    page.locator("#passage").wait_for(state="hidden")
