"""Read HTML pages with BeautifulSoup: text, title and headings."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING

from antiphon.retrieval.document import Document, Heading
from antiphon.retrieval.formats.text import decode

if TYPE_CHECKING:
    from bs4 import Tag
    from bs4.element import PageElement

_UNREAD = frozenset(["script", "style", "template", "noscript", "head", "nav", "svg", "button", "select", "iframe"])
_UNREAD_ROLES = frozenset(["navigation", "search", "banner", "contentinfo"])
_LINES = frozenset(["br", "caption", "dt", "li", "option", "tr"])
_CELLS = frozenset(["td", "th"])
_INLINE = re.compile(  # inline elements; every other element is a block
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|q|ruby|s|samp|small|span|"
    "strong|sub|sup|time|tt|u|var|wbr"
)
_TITLES = {f"h{level}": level for level in range(1, 7)}


class _Text:
    """The text so far. White space is buffered until the next word, so that no block begins or ends with it."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.length = 0
        self._space = ""

    def gap(self, space: str) -> None:
        """Request white space before the next word; of several requests the widest is used."""
        self._space = max(self._space, space, key=lambda gap: (gap.count("\n"), len(gap)))

    def add(self, text: str) -> int:
        """Append text without leading white space and return its start."""
        space = self._space if self.length else ""
        self._space = ""
        self.parts += (space, text)
        self.length += len(space) + len(text)
        return self.length - len(text)


def read_html_document(data: bytes, source: str) -> Document:
    """Read a page as a document, decoded as its ``<meta>`` element says.

    Args:
        data: The bytes of the page.
        source: The name of the document.

    Raises:
        ValueError: The bytes cannot be decoded.
    """
    text, title, headings = read_html(decode(data, declared_encoding(data)))
    return Document(text, source, {"title": title} if title else {}, headings)


def read_html(markup: str) -> tuple[str, str, tuple[Heading, ...]]:
    """Return the text of a page, its title (may be empty) and its headings, without scripts, styles and navigation.

    If the page marks one main part (``<main>`` or ``role="main"``), only that part is read.
    """
    from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning, XMLParsedAsHTMLWarning

    # XHTML is parsed as HTML on purpose, and a page may consist of one URL: neither deserves a warning.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", XMLParsedAsHTMLWarning)
        warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)
        soup = BeautifulSoup(markup, "html.parser")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for element in soup.find_all(_is_unread):
        element.extract()
    mains = soup.find_all("main") or soup.find_all(role="main")
    text, headings = _read(mains[0] if len(mains) == 1 else soup)
    return text, title, headings


def declared_encoding(markup: bytes) -> str | None:
    """Return the encoding that a page declares; None if it declares none, or if its bytes are valid UTF-8."""
    from bs4.dammit import EncodingDetector

    with contextlib.suppress(UnicodeDecodeError):
        markup.decode()
        return None
    return EncodingDetector.find_declared_encoding(markup, is_html=True)


def _is_unread(element: Tag) -> bool:
    is_permalink = element.name == "a" and "headerlink" in (element.get("class") or ())
    return element.name in _UNREAD or element.get("role") in _UNREAD_ROLES or is_permalink


def _read(root: Tag) -> tuple[str, tuple[Heading, ...]]:
    from bs4 import Tag

    text = _Text()
    headings: list[Heading] = []
    pending: list[tuple[PageElement, bool]] = [
        (root, False)
    ]  # an explicit stack, because pages can nest deeper than Python's recursion limit
    while pending:
        node, is_end = pending.pop()
        if not isinstance(node, Tag):
            _add_string(node, text)
            continue
        text.gap(_gap(node.name))
        if is_end:
            continue
        if level := _TITLES.get(node.name):
            _add_heading(node, level, text, headings)
            continue
        pending.append((node, True))
        pending.extend((child, False) for child in reversed(node.contents))
    return "".join(text.parts), tuple(headings)


def _gap(name: str) -> str:
    if _INLINE.fullmatch(name):
        return ""
    return " " if name in _CELLS else "\n" if name in _LINES else "\n\n"


def _add_heading(node: Tag, level: int, text: _Text, headings: list[Heading]) -> None:
    title = " ".join(node.get_text().split())
    if title:
        start = text.add(title)
        headings.append(Heading(start, text.length, level, title))
    text.gap("\n\n")


def _add_string(node: PageElement, text: _Text) -> None:
    from bs4.element import CData, NavigableString, PreformattedString

    if not isinstance(node, NavigableString) or (isinstance(node, PreformattedString) and not isinstance(node, CData)):
        return  # comments, doctypes and processing instructions
    is_raw = node.find_parent(["pre", "textarea"]) is not None
    words = node.strip("\r\n") if is_raw else " ".join(node.split())
    if node[:1].isspace():
        text.gap(" ")
    if words.strip():
        text.add(words)
    if node[-1:].isspace():
        text.gap("\n" if is_raw and node.endswith("\n") else " ")
