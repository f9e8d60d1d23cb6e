"""HTML pages are read as browsers show them: their text, but nothing hidden and no page furniture."""

import time

import pytest

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.html import read_html_document

PROSE = "Bees dance to tell their hive where flowers are. " * 6


def page(markup: str) -> Document:
    return read_html_document(b"\xef\xbb\xbf" + markup.encode(), "a.html")


def text_of(markup: str) -> str:
    return page(markup).text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<!doctype html><head><title>T</title><h1>One</h1>two", "One\n\ntwo"),
        ("<head><style>p {}</style><body><p>one<p>two", "one\n\ntwo"),
        ("<ul><li>one<li>two</ul><dl><dt>a<dd>b<dt>c<dd>d</dl>", "- one\n- two\n\na\n: b\n\nc\n: d"),
        ("<p>one <b>two<p>three</b> four", "one two\n\nthree four"),
        ("<h2>Title<p>one<h2>Next</h2><p>two", "Title\n\none\n\nNext\n\ntwo"),
        ("<script>one</script>two<script>three", "two"),
        ("<p>a &lt b &copy c", "a < b © c"),
        ("<div><span>one</div>two", "one\n\ntwo"),
    ],
)
def test_omitted_and_missing_end_tags_lose_no_text(markup: str, text: str) -> None:
    assert text_of(markup) == text


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("iso-8859-1", "cp1252", "“Grüße” – 5 €"),
        ("us-ascii", "cp1252", "naïve…"),
        ("Shift_JIS", "cp932", "①髙橋とはちみつ"),
        ("big5", "big5hkscs", "蜜蜂嘅"),
        ("windows-1251", "cp1251", "Пчёлы"),
    ],
)
def test_labels_of_legacy_encodings_mean_their_supersets(label: str, encoding: str, text: str) -> None:
    page = f'<meta charset="{label}"><p>{text}</p>'.encode(encoding)
    document = read_html_document(page, "a.html")
    assert (document.text, document.warnings) == (text, ())


@pytest.mark.parametrize(
    "head",
    [
        '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">',
        "<META CHARSET = 'cp1251' >",
        '<!-- <meta charset="utf-7"> --><meta charset=windows-1251>',
        '<?xml version="1.0" encoding="windows-1251"?>',
    ],
)
def test_an_encoding_is_declared_in_several_ways(head: str) -> None:
    assert read_html_document(f"{head}<p>Пчёлы".encode("cp1251"), "a.html").text == "Пчёлы"


def test_an_undeclared_or_unknown_encoding_is_detected_and_reported() -> None:
    sentence = "Пчёлы танцуют, чтобы показать улью, где растут цветы."
    for meta in ("", '<meta charset="klingon">'):
        document = read_html_document(f"{meta}<p>{sentence}".encode("cp1251"), "a.html")
        assert document.text == sentence
        assert "its encoding was detected: cp1251 (confidence" in document.warnings[0]
        assert ("'klingon', an unknown encoding" in document.warnings[0]) == bool(meta)


@pytest.mark.parametrize(
    "markup",
    [
        "<p hidden>secret</p>",
        '<div style="color: red; DISPLAY : none">secret</div>',
        '<span aria-hidden="true">secret</span>',
        "<dialog>secret</dialog>",
        "<noscript>secret</noscript>",
        "<svg><title>secret</title></svg>",
        '<math><annotation encoding="application/x-tex">secret</annotation></math>',
        "<!-- secret -->",
        "<p hidden>secret<b>secret</p></b>",
    ],
)
def test_hidden_text_is_not_read(markup: str) -> None:
    assert text_of(f"<p>One.</p>{markup}<p>Two.</p>") == "One.\n\nTwo."


@pytest.mark.parametrize(
    "furniture",
    [
        "<header>furniture</header>",
        "<footer>furniture</footer>",
        "<nav>furniture</nav>",
        "<aside>furniture</aside>",
        '<div role="banner">furniture</div>',
        '<div id="cookie-banner">furniture</div>',
        '<div class="box cookieConsent">furniture</div>',
        '<section><div class="gdpr-popup"><h2>furniture</h2></div></section>',
        '<div class="sphinxsidebar">furniture</div>',
        '<ul class="breadcrumb"><li>furniture</ul>',
    ],
)
def test_page_furniture_is_not_read(furniture: str) -> None:
    assert text_of(f"<body>{furniture}<p>{PROSE}</p>") == PROSE.strip()


def test_header_and_footer_of_an_article_are_content() -> None:
    article = "<article><header><h1>Bees</h1></header><p>They dance.</p><footer>By a keeper</footer></article>"
    assert text_of(article) == "Bees\n\nThey dance.\n\nBy a keeper"


@pytest.mark.parametrize("wrapper", ["header", "aside", "nav", 'div class="cookie-banner"'])
def test_main_content_is_kept_even_in_an_element_of_furniture(wrapper: str) -> None:
    assert PROSE.strip() in text_of(f"<body><{wrapper}><p>{PROSE}</p></{wrapper.split()[0]}><p>©</p>")


def test_empty_cells_of_a_table_are_kept() -> None:
    table = "<table><tr><th>Bee<th>Wax<th>Honey<tr><td>one<td><td>3<tr><td colspan=2>two<td> <tr></table>"
    assert text_of(table) == "| Bee | Wax | Honey |\n|---|---|---|\n| one |  | 3 |\n| two |  |  |"


def test_a_table_that_lays_out_a_page_is_read_as_paragraphs() -> None:
    layout = "<table><tr><td><h2>Bees</h2><p>dance<td><ul><li>a<li>b</ul><tr><td>x<td>y</table>"
    assert text_of(layout) == "Bees\n\ndance\n\n- a\n- b\n\nx y"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("これは<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>です", "これは漢字(かんじ)です"),
        ("<ruby>北京</ruby>です", "北京です"),
        ("so <math><mi>x</mi><mo>=</mo><msup><mi>y</mi><mn>2</mn></msup></math> holds", "so x=y^2 holds"),
        ("<math><mfrac>\n<mn>1</mn>\n<mn>2</mn>\n</mfrac></math>", "1/2"),
        (
            "<math><mfrac><mrow><mstyle><mi>a</mi><mo>+</mo><mi>b</mi></mstyle></mrow><mrow><mi>c</mi></mrow></mfrac>",
            "(a+b)/c",
        ),
        ("<math><msup><mi>x</mi><mrow><mfrac><mn>1</mn><mn>2</mn></mfrac></mrow></msup>", "x^(1/2)"),
        ("<math><mroot><mi>x</mi><mn>3</mn></mroot></math>", "3√(x)"),
        ("the 1<sup>st</sup> of 10<sup>-6</sup>", "the 1st of 10^-6"),
        ("<input type=checkbox><label><input type=checkbox><b></b></label>menu", "menu"),
        ("<ul><li><input type=checkbox>open<li><input type=checkbox checked> done", "- ☐ open\n- ☒ done"),
        ("<p>Yes <input type=radio checked> No <input type=radio>", "Yes ◉ No ○"),
        ("<h2>A <ruby>蜂<rt>はち</rt></ruby> <b>b</b>c</h2>", "A 蜂(はち) bc"),
    ],
)
def test_ruby_formulas_and_check_boxes_stay_on_their_line(markup: str, text: str) -> None:
    assert text_of(markup) == text


def test_soft_hyphens_and_zero_width_spaces_are_removed() -> None:
    assert text_of("<p>Honig&shy;bie\xadnen tan\u200bzen<pre>a\xadb</pre>") == "Honigbienen tanzen\n\nab"


def test_preformatted_text_keeps_blank_lines_and_indentation_between_elements() -> None:
    code = "<pre><span>def</span> f():\n    <span>x</span>\n\n\n<b>    </b><i>return</i><br>y\n</pre>"
    assert text_of(code) == "def f():\n    x\n\n\n    return\ny"


@pytest.mark.parametrize("unit", ["<h1><ruby>", "<math><msup>"])
def test_deeply_nested_pages_take_bounded_time(unit: str) -> None:
    before = time.process_time()
    assert text_of(unit * 5000 + "deep").strip("()") == "deep"
    assert time.process_time() - before < 30
