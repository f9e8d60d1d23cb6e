"""Elements of HTML pages: which are blocks, hidden or page furniture, and which tables contain data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
_HIDING_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\b", re.IGNORECASE)
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
class Row:
    """A row of a table: its cells (None in the columns that a wider cell covers), and whether all are headers."""

    cells: tuple[LexborNode | None, ...]
    is_header: bool


def declared_encoding(page: bytes) -> str:
    """Return the label of the encoding that a page declares in ``<meta>`` or as XML; empty if there is none."""
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
    """Return whether an element is not visible text: a script, a hidden element or a permalink of a heading."""
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


def data_rows(table: LexborNode) -> list[Row]:
    """Return the rows of a table with data; an empty list if the table is only used for layout.

    A table with data has at least two rows and two columns, short cells, and no headings, lists or tables in them.
    """
    bodies = [table, *(node for node in children(table) if node.tag in ("tbody", "thead", "tfoot"))]
    found = [node for body in bodies for node in children(body) if node.tag == "tr" and not is_hidden(node)]
    rows = [row for row in map(_row, found) if row.cells]
    if len(rows) < 2 or max(len(row.cells) for row in rows) < 2:
        return []
    if table.css_first("td table, th table, td h1, td h2, td h3, td pre, td ul, td ol, td form") is not None:
        return []
    longest = max(len(cell.text()) for row in rows for cell in row.cells if cell is not None)
    return rows if longest <= _LONGEST_CELL else []


def children(node: LexborNode) -> Iterator[LexborNode]:
    """Yield the children of a node: elements, texts and comments."""
    child = node.child
    while child is not None:
        yield child
        child = child.next


def nesting_excess(markup: str) -> int:
    """Return how many elements a page opens and never closes if that makes parsers slow; otherwise 0."""
    if markup.count("<") < _MOST_OPEN:
        return 0
    excess = len(_OPENING.findall(markup)) - len(_CLOSING.findall(markup))
    return excess if excess > _MOST_OPEN else 0


def _row(node: LexborNode) -> Row:
    cells: list[LexborNode | None] = []
    headers = 0
    for cell in children(node):
        if cell.tag in CELLS and not is_hidden(cell):
            span = cell.attributes.get("colspan") or "1"
            cells += [cell, *[None] * (min(int(span) if span.isdecimal() else 1, _MOST_COLUMNS) - 1)]
            headers += cell.tag == "th"
    return Row(tuple(cells), is_header=headers == sum(cell is not None for cell in cells))


def _is_in_content(node: LexborNode) -> bool:
    above = node.parent
    while above is not None:
        if above.tag in _CONTENT_PARTS:
            return True
        above = above.parent
    return False
