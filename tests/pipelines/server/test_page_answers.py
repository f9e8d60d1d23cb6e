"""Answers on the page: Markdown, also while it grows; sources named by markers; the quote before the answer."""

from typing import Any

import pytest

from tests.pipelines.server.page_fixtures import open_page

pytestmark = pytest.mark.slow


MARKDOWN = """# Keys

Rotate **all** [1], see [the guide](https://example.org/a) and [this](javascript:window.hit=1). <b onclick=x>Bold</b>

1. Stop
   - the *gate*

| Key | Days |
|-----|-----:|
| [gate](https://example.org) | **7** |

```python
keys[1] = "new"
```

The end ![map](https://example.org/map.png)
"""
SHOW = """async ([content, citations, numPassages]) => {
    const { Answer, newRecord } = await import('/static/answer.js');
    const parent = document.getElementById('conversation');
    const answer = new Answer(parent, newRecord(), ({ id }) => { window.opened = id; }, 'tiny');
    const passages = Array.from({ length: numPassages }, (_, index) => (
        { id: `p${index + 1}`, source: `${index + 1}.md`, title: 'Keys > Rules', location: '' }));
    answer.push({ passages, choices: [{ delta: { content, annotations: citations } }] });
    answer.finish();
}"""
"""Shows an answer with citations of passages p1, p2 and so on."""
GROW = """async (text) => {
    const { MarkdownText } = await import('/static/markdown.js');
    const root = document.createElement('div'), shown = new MarkdownText(root, () => {});
    const record = { citations: [], passages: [{}] }, texts = [], kept = [];
    for (let end = 1; end <= text.length; end += 1) {
        const first = root.firstChild;
        shown.show(text.slice(0, end), record, true);
        texts.push(root.textContent);
        kept.push(first === root.firstChild);
    }
    return [texts, kept.lastIndexOf(false), root.querySelectorAll('table, .code, a, strong, ol ul').length];
}"""
"""Shows a text that grows by one character each time."""
QUOTE = """async () => {
    const { Answer, newRecord } = await import('/static/answer.js');
    const answer = window.answer = new Answer(document.getElementById('conversation'), newRecord(), () => {}, 'tiny');
    const quote = { kind: 'verbatim', url_citation:
        { passage: 1, cited_text: 'Keys are **old**.', display_text: 'Keys are old.', location: 'p. 2' } };
    answer.push({ passages: [{ id: 'p1', source: 'a.pdf', title: '', location: '' }], quote, choices: [] });
}"""


def cited(text: str, part: str, passage: int, **fields: Any) -> dict[str, Any]:
    """Return an annotation of a part of a text."""
    start = text.index(part)
    place = {"start_index": start, "end_index": start + len(part), "passage": passage, "cited_text": part}
    return {"type": "url_citation", "url_citation": {**place, "display_text": part, "location": "Rules", **fields}}


def test_markdown_is_shown_and_its_html_stays_text(browser: Any, address: str) -> None:
    with open_page(browser, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.evaluate(SHOW, [MARKDOWN, [], 1])
        shown = page.locator(".answer-text")
        assert shown.locator("h3").inner_text() == "Keys"
        assert shown.locator("ol ul em").inner_text() == "gate"
        assert shown.locator("td[align=right] strong").inner_text() == "7"
        links = [(each.inner_text(), each.get_attribute("href")) for each in shown.locator("a").all()]
        assert links == [
            ("the guide", "https://example.org/a"),
            ("this", None),
            ("gate", "https://example.org"),
            ("map", "https://example.org/map.png"),
        ]
        first = shown.locator("a").first
        assert (first.get_attribute("target"), first.get_attribute("rel")) == ("_blank", "noopener noreferrer nofollow")
        assert "<b onclick=x>Bold</b>" in shown.inner_text()
        assert shown.locator("b, img").count() == 0
        assert shown.locator(".marker").all_inner_texts() == ["1"], "the index in the code is no source"
        shown.locator(".code").get_by_text("Copy").click()
        page.locator("#status", has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == 'keys[1] = "new"\n'
        assert page.evaluate("window.hit") is None


def test_a_growing_text_shows_no_unfinished_markup_and_keeps_what_is_done(page: Any) -> None:
    texts, first_kept, elements = page.evaluate(GROW, MARKDOWN)
    assert [each[-40:] for each in texts if any(mark in each for mark in ("**", "|", "``", "](", "all [", "---"))] == []
    assert first_kept < len("# Keys\n\n"), "the heading is never replaced"
    assert elements == 9


def test_markers_name_sources_and_say_if_the_passage_does_not_support_them(page: Any) -> None:
    text = (
        "- Old keys are **destroyed**. [1]\n- Gates rust [2, 3].\n\n`list[2]` is 【2】, not [1].\n\n- Bees\n- Dance\n"
    )
    citations = [
        cited(text, "Old keys are **destroyed", 1, kind="verbatim"),
        cited(text, "[1]", 1, kind="marker"),
        cited(text, " [2", 2, kind="marker", unsupported=False),
        cited(text, ", 3]", 3, kind="marker", unsupported=True),
        cited(text, "【2】", 2, kind="marker"),
        cited(text, "Bees\n- Dance", 2, kind="verbatim"),
    ]
    page.evaluate(SHOW, [text, citations, 3])
    markers = page.locator(".answer-text .marker")
    assert markers.all_inner_texts() == ["1", "2", "3", "2", "2"], "a quote with a marker has one number"
    assert page.locator(".answer-text .quote").all_inner_texts() == ["Old keys are ", "destroyed", "Bees", "Dance"]
    assert page.locator(".answer-text code").inner_text() == "list[2]"
    assert page.locator(".unsupported").get_attribute("aria-label") == "Source 3, which does not support this sentence"
    markers.nth(2).click()
    assert page.locator("#source-doubt").is_visible()
    page.keyboard.press("Escape")
    markers.first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#source-name").inner_text() == "1 1.md"
    assert page.locator("#source-quote").inner_text() == "Old keys are **destroyed"
    assert not page.locator("#source-doubt").is_visible()
    page.keyboard.press("Enter")
    assert page.evaluate("window.opened") == "p1"


def test_a_quote_is_shown_first_and_gives_way_to_the_answer(page: Any) -> None:
    page.evaluate(QUOTE)
    quote = page.locator(".first-quote")
    assert quote.inner_text() == "Quoted from a.pdf, p. 2\nKeys are old."
    size = "getComputedStyle(document.querySelector('.first-quote blockquote')).fontSize"
    before = page.evaluate(size)
    page.evaluate("answer.push({ choices: [{ delta: { content: 'All keys are new.' } }] })")
    assert float(page.evaluate(size)[:-2]) < float(before[:-2])
    page.click("#settings-open")
    page.uncheck("#quote-first")
    assert not quote.is_visible()
    page.reload()
    page.locator("#quote-first:not(:checked)").wait_for(state="attached")
