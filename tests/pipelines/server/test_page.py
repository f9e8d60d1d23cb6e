"""The web page in a browser: answers, sources, the speed view; hostile documents stay text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.integrations.scripted_model import ScriptedModel
from tests.pipelines.server.conftest import tiny_service
from tests.pipelines.server.live_server import live_server
from tests.pipelines.server.page_fixtures import (
    ask,
    open_page,
    open_quote,
    scripted,
    served_collections,
    wait_for_text,
)

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
EMOJI = "🐝👩‍👧 Honey 𝒌eeps."
HOSTILE = tuple(
    Passage.at(f"folder/{each}.txt", 0, f"honey {each} keeps for years", {"title": each}) for each in INJECTIONS
)


@pytest.fixture(scope="module")
def address(typist: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve documents with injections in text, title and file name."""
    folder = tmp_path_factory.mktemp("page") / "index"
    index_passages([*HOSTILE, Passage.at("emoji.md", 0, EMOJI)], folder, HashEmbedder())
    with live_server(create_app(tiny_service(typist, folder, max_output_tokens=64, k=len(INJECTIONS)))) as url:
        yield url


SHOW = """async (event) => {
    const { Answer, newRecord } = await import('/static/answer.js');
    const { openPassage } = await import('/static/passage.js');
    const open = (passage, cited) => openPassage('docs', passage, cited);
    const answer = new Answer(document.getElementById('conversation'), newRecord(), open, event.caption);
    answer.push(event);
    answer.finish();
}"""
"""Shows an answer that is made of one event of the server."""


def answer_event(texts: tuple[str, ...], ids: tuple[str, ...]) -> dict[str, Any]:
    """Return an event with an answer that copies from and cites one passage for each text."""
    passages = [
        {"id": name, "source": text, "title": text, "location": ""} for name, text in zip(ids, texts, strict=True)
    ]
    segments, annotations, at = [], [], 0
    for number, text in enumerate(texts, start=1):
        span = {"passage": number, "start": 6, "end": 6 + len(text)}
        segments.append({"text": text, "drafted": True, "step": at, **span})
        place = {"start_index": at, "end_index": at + len(text), "passage_start": 6, "passage_end": 6 + len(text)}
        cited = {"passage": number, "cited_text": text, "display_text": text, "location": text, **place}
        annotations.append({"url_citation": cited})
        at += len(text) + 1
    choices = [{"delta": {"content": "\n".join(texts), "annotations": annotations}}]
    return {"passages": passages, "segments": segments, "choices": choices, "caption": texts[0]}


def figures(steps: int, tokens: int) -> dict[str, Any]:
    """Return the figures of an event."""
    metrics = {"steps": steps, "tokens_per_step": tokens / max(steps, 1), "seconds": 1.3}
    metrics["time_to_first_token_seconds"] = 0.3
    details = {"response_prefix_tokens": 0}
    return {"usage": {"completion_tokens": tokens, "prompt_tokens_details": details}, "metrics": metrics}


def test_a_question_is_answered_and_followed_up(page: Any) -> None:
    page.select_option("#model", "tiny")
    turn = ask(page, "How do bees live?")
    assert turn.locator(".answer-text").inner_text()
    assert turn.locator(".model-name").inner_text() == "tiny"
    assert "Answered in" in turn.locator(".actions .caption").inner_text()
    ask(page, "And in winter?")
    assert page.locator(".turn").count() == 2
    page.click("#new-conversation")
    assert page.locator(".turn").count() == 0
    assert page.locator("#welcome").is_visible()


def test_the_speed_view_is_off_at_first_and_one_click_away(page: Any) -> None:
    page.select_option("#model", "tiny")
    assert not page.locator("#speed").is_visible(), "there is nothing to show yet"
    turn = ask(page, "How do bees live?")
    assert not turn.locator(".stats").is_visible()
    assert not turn.get_by_text("Compare with plain decoding").is_visible()
    page.click("#speed")
    assert page.get_attribute("#speed", "aria-pressed") == "true"
    for part in ("tokens in", "forward passes", "tokens per second"):
        assert part in turn.locator(".stats").inner_text()
    assert turn.locator(".answer-runs").inner_text() == page.evaluate(
        "JSON.parse(localStorage.getItem('antiphon-conversations'))[0].turns[0].record.text"
    )
    page.reload()
    page.wait_for_selector("#speed[aria-pressed=true]")


def test_plain_decoding_is_compared_after_the_answer_and_has_the_same_text(page: Any) -> None:
    page.select_option("#model", "tiny")
    turn = ask(page, "How do bees live?")
    page.click("#speed")
    with page.expect_request("**/v1/chat/completions") as sent:
        turn.get_by_text("Compare with plain decoding").click()
    assert sent.value.post_data_json["plain"] is True
    turn.locator(".result", has_text="Both texts are the same.").wait_for()
    texts = turn.locator(".answer-runs").all_inner_texts()
    assert len(texts) == 2
    assert texts[0] == texts[1], "drafting changes no word"


def test_an_answer_without_a_forward_pass_is_shown_as_quoted(page: Any) -> None:
    page.evaluate(SHOW, {"choices": [{"delta": {"content": "It keeps."}}], **figures(0, 0)})
    assert page.locator(".answer .actions .caption").inner_text() == "Quoted from the documents in 1.3 s"
    page.evaluate("document.body.classList.add('speed')")
    assert page.locator(".answer-text").is_visible(), "there is no speed view of it"
    assert page.locator(".stats").count() == 0


def test_a_refusal_is_shown_as_one_and_not_as_quoted(page: Any) -> None:
    event = answer_event(("a.md",), (HOSTILE[0].id,))
    event["choices"] = [{"delta": {"content": '"The passages do not say." [1] Ask in English.'}, "refused": True}]
    page.evaluate(SHOW, {**event, **figures(0, 0)})
    shown = page.locator(".answer.refusal")
    assert shown.locator(".answer-text").inner_text() == "No answer in these documents\n\nAsk in English."
    assert "Closest passages" in shown.inner_text()
    assert "Searched the documents in 1.3 s" in shown.inner_text()
    assert "uoted" not in shown.inner_text()


def test_a_model_that_only_quotes_is_not_offered_a_comparison(page: Any) -> None:
    offered = page.evaluate("""async () => {
        const { isExtractive, listModels } = await import('/static/models.js');
        const original = window.fetch;
        const data = [{ id: 'x+docs', collection: 'docs', extractive: true }, { id: 'x', extractive: false }];
        window.fetch = async () => new Response(JSON.stringify({ data }));
        await listModels();
        window.fetch = original;
        return [isExtractive('x+docs'), isExtractive('x')];
    }""")
    assert offered == [True, False]


def test_document_text_is_never_markup(page: Any) -> None:
    """Show an answer that copies every passage, written and quoted, made of the same events as the server sends."""
    wait_for_text(page, "#documents-count", str(len(INJECTIONS) + 1))
    page.evaluate(SHOW, answer_event(INJECTIONS, tuple(each.id for each in HOSTILE)))
    page.evaluate("document.body.classList.add('speed')")
    segments = page.locator(".segment")
    assert segments.count() == len(INJECTIONS)
    for index, injection in enumerate(INJECTIONS):
        segments.nth(index).focus()
        page.keyboard.press("Enter")
        page.locator("#passage-body mark").wait_for()
        assert page.locator("#passage-body mark").text_content() == injection
        assert page.locator("#passage-name").text_content() == injection
        page.keyboard.press("Escape")
    page.evaluate("document.body.classList.remove('speed')")
    quoted = answer_event(INJECTIONS, tuple(each.id for each in HOSTILE))
    quoted["segments"] = [{**each, "step": None, "drafted": False, "quoted": True} for each in quoted["segments"]]
    for segment in quoted["segments"][:-1]:
        segment["text"] += "\n"
    page.evaluate(SHOW, quoted)
    shown = page.locator(".answer").last
    quotes = [" ".join(each.split()) for each in shown.locator(".quote").all_text_contents()]
    assert quotes == [" ".join(each.split()) for each in INJECTIONS]
    shown.locator(".marker").nth(3).click()
    assert page.locator("#source-quote").text_content() == INJECTIONS[3]
    page.click("#source-open")
    page.locator("#passage-body mark").wait_for()
    assert page.locator("#passage-body mark").text_content() == INJECTIONS[3]
    assert page.locator("script").count() == 1, "the page's own script"
    assert page.locator("#conversation :is(script, img, svg, iframe, object, embed, style, link)").count() == 0
    assert page.locator("dialog :is(script, img, svg, iframe, object, embed, style, link)").count() == 0
    assert page.evaluate("window.hit") is None


def test_offsets_are_right_after_emojis(page: Any) -> None:
    event = answer_event((EMOJI,), (Passage.at("emoji.md", 0, EMOJI).id,))
    cited = {"start_index": 0, "end_index": 4, "passage_start": 5, "passage_end": 16}
    event["choices"][0]["delta"]["annotations"][0]["url_citation"] |= {**cited, "display_text": EMOJI[:4]}
    event["choices"][0]["delta"]["annotations"][0]["url_citation"]["cited_text"] = EMOJI[:4]
    page.evaluate(SHOW, event)
    assert page.locator(".quote").text_content() == "🐝👩‍👧"
    open_quote(page, page.locator(".answer"))
    page.locator("#passage-body mark").wait_for()
    assert page.locator("#passage-body mark").text_content() == EMOJI[5:16] == "Honey 𝒌eeps"
    assert page.locator(".cited-passage").text_content() == EMOJI


def test_thinking_is_folded_above_the_answer(page: Any) -> None:
    found = page.evaluate(
        """async () => {
            const { Answer, newRecord } = await import("/static/answer.js");
            const root = document.createElement("div"), answer = new Answer(root, newRecord());
            answer.push({ choices: [{ delta: { reasoning_content: "<b>Hm" } }] });
            answer.push({ choices: [{ delta: { reasoning_content: "." } }] });
            answer.push({ choices: [{ delta: { content: "So." } }] });
            answer.finish();
            const folded = root.querySelector("details");
            return [folded.open, folded.querySelector("p").textContent, folded.nextSibling.textContent.trim(),
                root.querySelector("b")];
        }"""
    )
    assert found == [False, "<b>Hm.", "So.", None]


def test_the_page_works_below_a_path_of_a_proxy(browser: Any, tmp_path: Path) -> None:
    model = ScriptedModel(answer=scripted)
    service = make_service(model, ServerSettings(), name="scripted", collections=served_collections(tmp_path, model))
    app = create_app(service)

    async def below_a_path(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "/llm")
        assert path.startswith("/llm")
        await app({**scope, "path": path.removeprefix("/llm")}, receive, send)

    proxied: Any = below_a_path
    with live_server(proxied) as url, open_page(browser, f"{url}/llm/") as page:
        assert ask(page, "How do bees live?").inner_text()
        assert page.evaluate("location.pathname") == "/llm/"
