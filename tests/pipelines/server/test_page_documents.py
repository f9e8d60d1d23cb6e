"""Documents on the page: files and folders are added with reasons, and a source opens the passage in its document."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.server.page_fixtures import (
    GUIDE,
    GUIDE_PAGE,
    HANDBOOK,
    KEYS,
    ask,
    open_page,
    open_quote,
    wait_for_text,
)

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


DROP = """() => {
    const data = new DataTransfer();
    data.items.add(new File(['x'], 'program.exe'));
    document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }));
}"""
DROP_OF_A_MOVED_FILE = """() => {
    const file = (resolve, reject) => reject(new Error('The file was moved.'));
    DataTransferItem.prototype.webkitGetAsEntry = () => ({ name: 'a.md', isFile: true, file });
    const data = new DataTransfer();
    data.items.add(new File(['x'], 'a.md'));
    document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }));
}"""
DROPPED_FOLDER = """async () => {
    const { droppedFiles } = await import('/static/uploads.js');
    const file = (name) => ({ name, isFile: true, file: (resolve) => resolve(new File(['x'], name)) });
    const folder = (name, entries) => ({ name, isFile: false, createReader() {
        const batches = [entries.slice(0, 1), entries.slice(1), []]; // a browser gives some entries at a time
        return { readEntries: (resolve) => resolve(batches.shift()) };
    } });
    const entry = folder('notes', [file('a.md'), folder('old', [file('a.md')])]);
    return (await droppedFiles([{ webkitGetAsEntry: () => entry }])).map((each) => each.name);
}"""
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
    page.locator("#document-list li", has_text="img src=x onerror=window.hit=1>.md").wait_for()
    page.get_by_label(f"Remove {hostile.name}").click()
    page.wait_for_selector("#document-list li .small", state="detached")
    assert page.evaluate("window.hit") is None


def test_a_folder_is_added_with_a_reason_for_each_file_that_is_not(page: Any, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "old").mkdir(parents=True)
    (folder / "wax.md").write_text("Wax comes from young bees.")
    (folder / "old" / "wax.md").write_text("Wax was used for candles.")
    (folder / "empty.md").write_text("")
    (folder / "broken.pdf").write_text("no PDF")
    (folder / "program.exe").write_text("x")
    (folder / ".hidden.md").write_text("x")
    page.set_input_files("#folder", folder)
    wait_for_text(page, "#documents-status", "Added 2. Not added: 4.")
    found = upload_lines(page)
    assert found["notes/wax.md"] == found["notes/old/wax.md"] == "Added, 1 passage"
    assert "not supported" in found["notes/program.exe"]
    assert "hidden" in found["notes/.hidden.md"]
    assert "%PDF" in found["notes/broken.pdf"]
    assert "The file cannot be read" in found["notes/empty.md"]
    page.locator("summary", has_text="notes").click()
    page.locator("summary", has_text="old").click()
    for name in ("notes/wax.md", "notes/old/wax.md"):
        page.get_by_label(f"Remove {name}").click()
        page.get_by_label(f"Remove {name}").wait_for(state="detached")


def test_a_dropped_file_that_the_browser_cannot_read_is_reported(page: Any) -> None:
    page.evaluate(DROP_OF_A_MOVED_FILE)
    wait_for_text(page, "#documents-status", "The file was moved.")


def test_progress_is_shown_and_adding_can_be_stopped(page: Any, tmp_path: Path) -> None:
    for name in ("one.md", "two.md", "three.md"):
        (tmp_path / name).write_text("x")
    waiting: list[Any] = []
    page.route(
        "**/documents?*", lambda route: waiting.append(route) if route.request.method == "POST" else route.continue_()
    )
    page.set_input_files("#files", [tmp_path / "one.md", tmp_path / "two.md", tmp_path / "three.md"])
    wait_for_text(page, "#documents-status", "Adding file 1 of 3")
    page.get_by_label("Adding one.md").wait_for()
    assert page.locator("#upload-list progress").count() == 3
    page.click("#upload-stop")
    body = '{"error": {"message": "The disk is full."}}'
    waiting[0].fulfill(status=500, content_type="application/json", body=body)
    wait_for_text(page, "#documents-status", "Added 0. Not added: 3.")
    assert list(upload_lines(page).values()) == ["The disk is full.", "Not added: stopped", "Not added: stopped"]


def test_a_file_dropped_before_the_documents_are_listed_waits_for_the_list(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    waiting: list[Any] = []
    page.route("**/documents?*", lambda route: route.continue_() if waiting else waiting.append(route))
    with page.expect_request("**/documents?*"):
        page.goto(address)
    page.evaluate(DROP)
    waiting[0].continue_()
    wait_for_text(page, "#documents-status", "Not added: 1.")
    context.close()


def test_a_dropped_folder_gives_all_files_in_it(page: Any) -> None:
    assert page.evaluate(DROPPED_FOLDER) == ["notes/a.md", "notes/old/a.md"]


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
    open_quote(page, turn)
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
    open_quote(page, turn)
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


def test_documents_are_searched_and_opened(page: Any) -> None:
    names = page.locator(".document-name")
    names.nth(1).wait_for()
    page.fill("#document-search", "GUIDE")
    assert names.all_inner_texts() == ["guide.pdf"]
    names.click()
    page.get_by_label("Page 2", exact=True).wait_for()
    page.click("#view-text")
    assert page.locator("#passage-body p").inner_text() == "\n".join(GUIDE_PAGE)
    page.keyboard.press("Escape")
    page.fill("#document-search", "handbook")
    names.click()
    page.get_by_text(HANDBOOK[0]).wait_for()
    assert page.locator("#passage-body p").all_inner_texts() == list(HANDBOOK)
    assert page.locator("#passage-place").inner_text() == f"{len(HANDBOOK)} passages"
    page.keyboard.press("Escape")
    page.fill("#document-search", "nothing")
    assert "No document" in page.locator("#document-list").inner_text()


def test_an_example_question_is_asked(page: Any) -> None:
    page.route("**/documents/questions*", lambda route: route.fulfill(json={"object": "list", "data": [KEYS]}))
    page.reload()
    page.locator(".example").click()
    wait_for_text(page, ".question", KEYS)
    wait_for_text(page, "#status", "Answered")
    assert not page.locator("#examples").is_visible()


def test_a_passage_whose_document_was_removed_says_so(page: Any, tmp_path: Path) -> None:
    turn = ask(page, KEYS)
    page.route(
        "**/passages/**", lambda route: route.continue_(url=route.request.url.replace("/passages/", "/passages/x"))
    )
    open_quote(page, turn)
    wait_for_text(page, "#passage-body", "its document may have been removed")


def test_the_dialog_fills_a_small_screen(browser: Any, address: str) -> None:
    with open_page(browser, address, viewport={"width": 390, "height": 700}) as page:
        open_quote(page, ask(page, KEYS))
        page.locator("#passage-body mark").wait_for()
        assert page.locator("#passage").bounding_box()["width"] == 390
        assert is_in_view(page, "#passage-body mark")
        assert page.evaluate("document.documentElement.scrollWidth <= 390")
