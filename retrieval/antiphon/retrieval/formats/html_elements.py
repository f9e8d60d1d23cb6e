"""Elements of HTML pages: which are blocks, hidden or page furniture, and which tables contain data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from antiphon.retrieval.formats.merged_cells import Merge
from antiphon.retrieval.formats.numerals import numeral

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

BLOCKS = frozenset(
    re.findall(
        "[a-z0-9]+",
        "address article aside blockquote body center dd details dialog dir div dl fieldset figcaption figure footer "
        "form frameset h1 h2 h3 h4 h5 h6 header hgroup hr html legend listing main menu nav ol optgroup p plaintext "
        "pre search section summary table tbody tfoot thead ul xmp",
    )
)
"""Elements that begin a paragraph. Unknown elements are inline, as in browsers."""

LINES = frozenset(["br", "caption", "dt", "li", "option", "tr"])
"""Elements that begin and end a line."""

CELLS = frozenset(["td", "th"])
RAW = frozenset(["listing", "plaintext", "pre", "textarea", "xmp"])
RUBY_NOTES = frozenset(["rp", "rt", "rtc"])
LEVELS = {f"h{level}": level for level in range(1, 7)}

_NOT_TEXT = frozenset(
    re.findall(
        "[a-z-]+",
        "annotation annotation-xml audio button canvas datalist head iframe noembed noframes noscript object script "
        "style svg template title video",
    )
)
_HIDING_STYLE = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|mso-hide\s*:\s*all"
    r"|(?:left|top|text-indent)\s*:\s*-\d{4,}px)\b",
    re.IGNORECASE,
)
_PERMALINK = re.compile(r"\s*[¶#§🔗]\s*")
_FURNITURE = frozenset(["nav", "search", "select"])
_PAGE_PARTS = frozenset(["aside", "footer", "header"])  # furniture, unless they belong to a part of the content
_CONTENT_PARTS = frozenset(["article", "blockquote", "figure", "main", "section", "td"])
_FURNITURE_ROLES = frozenset(["banner", "complementary", "contentinfo", "menu", "menubar", "navigation", "search"])
_BANNER = re.compile(
    r"(?:.*[-_])?(?:cookies?|gdpr|ccpa|consent|onetrust|cookieyes|cookielaw)(?:[-_]?(?:banner|bar|box|consent|container|"
    r"content|dialog|disclaimer|info|law|manager|message|modal|notice|notification|overlay|policy|popup|prompt|sdk|"
    r"settings|warning|wrapper))+(?:[-_].*)?|gdpr|cc-window|(?:cookie|gdpr)consent",
    re.IGNORECASE,
)
_FURNITURE_CLASSES = re.compile(
    r"breadcrumbs?|nav-?bar|site-?(?:footer|header|nav(?:igation)?)|skip-?(?:link|to-content|nav)|sphinxsidebar|"
    r"(?:main|page|site)-?menu|nav-?path",
    re.IGNORECASE,
)
_LIST_TYPES = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_CONTAINERS = frozenset(["aside", "div", "dialog", "form", "ol", "p", "span", "table", "ul"])
_META = re.compile(rb"<meta\b", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,>]+)", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)")
_PRESCAN = 4096  # bytes; the standard says 1024, and browsers read on
_MOST_COLUMNS = 100
_LONGEST_CELL = 400
_MOST_OPEN = 20_000
_NESTING = "(?:a|article|aside|b|blockquote|code|div|em|font|i|main|nav|ol|section|span|table|ul)"
_OPENING, _CLOSING = (re.compile(rf"{bracket}{_NESTING}\b", re.IGNORECASE) for bracket in ("<", "</"))


@dataclass(frozen=True, slots=True)
class TableNodes:
    """The cells of a table.

    Attributes:
        rows: The cells of each row; None in a place that is covered by a cell above or to the left.
        merges: The cells that cover several rows or columns.
        header_rows: The number of rows at the top that are marked as headers.
    """

    rows: list[list[LexborNode | None]]
    merges: list[Merge]
    header_rows: int


def declared_encoding(page: bytes) -> str:
    """Return the label of a page's declared encoding (``<meta>`` or XML); empty if it has none."""
    from selectolax.lexbor import LexborHTMLParser

    if xml := _XML.match(page):
        return xml[1].decode("ascii")
    if not _META.search(page, 0, _PRESCAN):
        return ""
    for node in LexborHTMLParser(page[:_PRESCAN].decode("latin-1")).css("meta"):
        if label := (node.attributes.get("charset") or "").strip():
            return label
        is_type = (node.attributes.get("http-equiv") or "").strip().lower() == "content-type"
        if is_type and (found := _CHARSET.search(node.attributes.get("content") or "")):
            return found[1]
    return ""


def is_hidden(node: LexborNode) -> bool:
    """Return whether an element has no visible text: a script, a hidden element, a permalink."""
    tag = node.tag
    if tag in _NOT_TEXT:
        return True
    attributes = node.attributes
    if not attributes:
        return tag == "dialog"
    if "hidden" in attributes and attributes["hidden"] != "until-found":
        return True
    if (attributes.get("aria-hidden") or "").lower() == "true" or (tag == "dialog" and "open" not in attributes):
        return True
    if tag == "a" and _PERMALINK.fullmatch(node.text() or " "):
        return True
    return bool(_HIDING_STYLE.search(attributes.get("style") or ""))


def is_furniture(node: LexborNode) -> bool:
    """Return whether an element is page furniture: navigation, header, footer, aside, cookie banner."""
    tag, attributes = node.tag or "", node.attributes
    if tag in _FURNITURE or (attributes.get("role") or "").lower() in _FURNITURE_ROLES:
        return True
    if tag in _PAGE_PARTS and not _is_in_content(node):
        return True
    names = f"{attributes.get('class') or ''} {attributes.get('id') or ''}".split() if tag in _CONTAINERS else ()
    return any(_BANNER.fullmatch(name) or _FURNITURE_CLASSES.fullmatch(name) for name in names)


def data_table(table: LexborNode) -> TableNodes | None:
    """Return the cells of a table with data, or None if the table is only used for layout.

    A table with data has at least two rows and two columns. Its cells are short, and contain no
    headings, lists or tables.
    """
    bodies = sorted(
        (node for node in children(table) if node.tag in ("tbody", "thead", "tfoot")),
        key=lambda node: node.tag == "tfoot",
    )
    found = [node for body in (table, *bodies) for node in children(body) if node.tag == "tr" and not is_hidden(node)]
    cells = [[cell for cell in children(row) if cell.tag in CELLS and not is_hidden(cell)] for row in found]
    cells = [row for row in cells if row]
    nodes = _placed(cells)
    if len(cells) < 2 or max(map(len, nodes.rows)) < 2:
        return None
    if table.css_first("td table, th table, td h1, td h2, td h3, td pre, td ul, td ol, td form") is not None:
        return None
    longest = max(len(cell.text()) for row in cells for cell in row)
    return nodes if longest <= _LONGEST_CELL else None


def _placed(cells: Sequence[Sequence[LexborNode]]) -> TableNodes:
    """Put the cells of each row into the columns that are not covered by cells of the rows above."""
    rows: list[list[LexborNode | None]] = [[] for _ in cells]
    merges = []
    covered: dict[int, int] = {}  # the last row of the cell that covers a column
    for top, row in enumerate(cells):
        left = 0
        for cell in row:
            while covered.get(left, -1) >= top:
                left += 1
            height = (_span(cell, "rowspan") or len(cells)) if left < _MOST_COLUMNS else 1
            bottom = min(top + height, len(cells)) - 1
            right = left + min(_span(cell, "colspan") or 1, _MOST_COLUMNS) - 1
            covered |= dict.fromkeys(range(left, right + 1), bottom)
            rows[top] += [None] * (right + 1 - len(rows[top]))
            rows[top][left] = cell
            if bottom > top or right > left:
                merges.append(Merge(top, left, bottom, right))
            left = right + 1
    header = takewhile(lambda row: all(cell.tag == "th" for cell in row), cells)
    return TableNodes(rows, merges, sum(1 for _ in header))


def _span(cell: LexborNode, name: str) -> int:
    span = cell.attributes.get(name) or "1"
    return int(span) if span.isdecimal() else 1


def children(node: LexborNode) -> Iterator[LexborNode]:
    """Yield the children of a node: elements, texts and comments."""
    child = node.child
    while child is not None:
        yield child
        child = child.next


def item_labels(ordered_list: LexborNode) -> dict[int, str]:
    """Map the node address of each item of an ordered list to the number that browsers show.

    All labels are empty if the list's style contains ``none``, or if its class is ``numbered``
    (Word lists, whose text has the numbers).
    """
    attributes = ordered_list.attributes
    items = [child for child in children(ordered_list) if child.tag == "li" and not is_hidden(child)]
    step = -1 if "reversed" in attributes else 1
    number = _integer(attributes.get("start"), len(items) if step < 0 else 1)
    is_numbered = attributes.get("class") == "numbered" or "none" in (attributes.get("style") or "")
    labels = {}
    for item in items:
        number = _integer(item.attributes.get("value"), number)
        kind = _LIST_TYPES.get(attributes.get("type") or "", "decimal")
        labels[item.mem_id] = "" if is_numbered else f"{numeral(number, kind)}. "
        number += step
    return labels


def _integer(text: str | None, default: int) -> int:
    return int(text) if text and re.fullmatch(r"-?\d{1,9}", text.strip()) else default


def nesting_excess(markup: str) -> int:
    """Return the number of elements that a page does not close; 0 if they are too few to slow parsers down."""
    if markup.count("<") < _MOST_OPEN:
        return 0
    excess = len(_OPENING.findall(markup)) - len(_CLOSING.findall(markup))
    return excess if excess > _MOST_OPEN else 0


def _is_in_content(node: LexborNode) -> bool:
    above = node.parent
    while above is not None:
        if above.tag in _CONTENT_PARTS:
            return True
        above = above.parent
    return False
