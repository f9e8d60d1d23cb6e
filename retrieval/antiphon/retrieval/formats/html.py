"""Read HTML pages with selectolax, which parses as browsers do: text, title and headings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import takewhile
from typing import TYPE_CHECKING

from antiphon.retrieval.document import Document, Heading
from antiphon.retrieval.formats.document_builder import table_row
from antiphon.retrieval.formats.equations import EXPONENT
from antiphon.retrieval.formats.html_elements import (
    BLOCKS,
    CELLS,
    LEVELS,
    LINES,
    RAW,
    RUBY_NOTES,
    TableNodes,
    children,
    data_table,
    declared_encoding,
    is_furniture,
    is_hidden,
    item_labels,
    nesting_excess,
)
from antiphon.retrieval.formats.merged_cells import with_joined_header
from antiphon.retrieval.formats.text import decode_text

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_INVISIBLE = re.compile("[\xad\u200b\u2060-\u2064\ufeff]")  # soft hyphens, zero-width spaces, operators of MathML
_LEAST_TEXT = 200  # characters; a shorter main text is suspicious if it is below a tenth of the page
_LEAST_SHARE = 0.1
_MOST_CODE_LINES = 60
_OPERATORS = {"msup": "^", "msub": "_", "mfrac": "/", "msubsup": "_^", "mover": "^", "munder": "_", "munderover": "_^"}
_LABELLED = ("label", "li", "td", "th")  # elements in which a check box stands before its text
_GROUPS = ("mrow", "mstyle", "mpadded")
_BOXES = {"checkbox": "\u2610\u2612", "radio": "\u25cb\u25c9"}


class _Text:
    """The text that has been read. White space is buffered, so that no block begins or ends with it.

    Attributes:
        is_line: Whether every run of white space becomes one space, as in headings and cells.
        code: The spans of short preformatted texts.
        labels: The numbers of list items that are not read yet, by the addresses of their nodes.
    """

    def __init__(self, *, is_line: bool = False) -> None:
        self.parts: list[str] = []
        self.headings: list[Heading] = []
        self.code: list[tuple[int, int]] = []
        self.length = 0
        self.is_line = is_line
        self.labels: dict[int, str] = {}
        self._space = ""
        self._marker = ""
        self._is_definition = False

    def begin_definition(self) -> None:
        """Put the next word on the line below the term, after a colon, as in Markdown."""
        self._is_definition = not self.is_line

    def begin_item(self, label: str) -> None:
        """Put the marker or the number of a list item before the next word."""
        self._marker = "" if self.is_line else label

    def gap(self, space: str) -> None:
        """Request white space before the next word; the widest of several requests is used."""
        if space:
            space = " " if self.is_line else space
            self._space = max(self._space, space, key=lambda gap: (gap.count("\n"), len(gap)))

    def add(self, text: str) -> None:
        """Append text without leading white space."""
        space = "\n" if self._is_definition and self._space.startswith("\n") else self._space
        before = (space if self.length else "") + (": " * self._is_definition or self._marker)
        self._space = self._marker = ""
        self._is_definition = False
        self.parts += (before, text)
        self.length += len(before) + len(text)

    @property
    def ends_with_digit(self) -> bool:
        """Whether the next word follows a digit without a gap."""
        return not self._space and bool(self.parts) and self.parts[-1][-1:].isdigit()

    def add_code(self, text: str) -> None:
        """Append preformatted text as a paragraph. A short text counts as code; a long text (a letter) does not."""
        self.gap("\n\n")
        if text:
            self.add(text)
            if text.count("\n") < _MOST_CODE_LINES:
                self.code.append((self.length - len(text), self.length))
        self.gap("\n\n")

    def add_string(self, string: str) -> None:
        """Append a text, with runs of white space as one space."""
        string = _INVISIBLE.sub("", string)
        if string[:1].isspace():
            self.gap(" ")
        if words := " ".join(string.split()):
            self.add(words)
        if string[-1:].isspace():
            self.gap(" ")

    def add_heading(self, title: str, level: int) -> None:
        """Append a heading as a paragraph."""
        self.gap("\n\n")
        if title:
            self.add(title)
            self.headings.append(Heading(self.length - len(title), self.length, level, title))
        self.gap("\n\n")

    def __str__(self) -> str:
        return "".join(self.parts)


def read_html_document(data: bytes, source: str, *, quote_marks: bool = False) -> Document:
    """Read the visible text of a page and its headings, without page furniture.

    Page furniture is navigation, headers, footers, asides and cookie banners. If a page marks one main part
    (``<main>`` or ``role="main"``), only that part is read. If almost nothing would be left, furniture is read too.
    Cells of tables are separated by ``|``. The pronunciation in a ruby annotation follows the
    annotated text in parentheses. The encoding that the page declares is interpreted as in
    browsers; if the page declares none, the encoding is detected.

    Args:
        quote_marks: Whether the lines of block quotes begin with ``>``, as in plain e-mail.

    Raises:
        ValueError: The bytes are binary, or the page opens far more elements than it closes.
    """
    decoded = decode_text(data, declared_encoding(data))
    text, title = _read_page(decoded.text, quote_marks)
    metadata = {"title": title} if title else {}
    code = tuple(text.code)
    return Document(str(text), source, metadata, tuple(text.headings), code=code, warnings=decoded.warnings)


def read_html_body(body: str, source: str) -> Document:
    """Read the content of a page, as `read_html_document` does."""
    return read_html_document(f"<!doctype html><meta charset=utf-8><body>{body}".encode("utf-8", "replace"), source)


def _read_page(markup: str, quote_marks: bool) -> tuple[_Text, str]:
    from selectolax.lexbor import LexborHTMLParser

    if excess := nesting_excess(markup):
        raise ValueError(f"it opens {excess} elements more than it closes, too many for a page")
    page = LexborHTMLParser(markup)
    for quote in reversed(page.css("blockquote") if quote_marks else []):  # the inner ones first
        lines = str(_read(children(quote))).split("\n")
        marked = LexborHTMLParser(f"<pre>{escape(chr(10).join(f'> {line}' for line in lines))}</pre>")
        if (block := marked.css_first("pre")) is not None:
            quote.replace_with(block)
    text = _main_text(page)
    title = page.css_first("head > title")
    words = " ".join(_INVISIBLE.sub("", title.text()).split()) if title is not None else ""
    first = next((heading.title for heading in text.headings if heading.level == 1), "")
    return text, words or first


def _main_text(page: LexborHTMLParser) -> _Text:
    root = page.body or page.root
    if root is None:
        return _Text()
    mains = [node for node in page.css("main") or page.css("[role=main]") if not is_hidden(node)]
    text = _read(children(mains[0] if len(mains) == 1 else root))
    if text.length < _LEAST_TEXT:
        whole = _read(children(root), with_furniture=True)
        if text.length < _LEAST_SHARE * whole.length:
            return whole
    return text


def _read(
    nodes: Iterable[LexborNode], *, with_furniture: bool = False, is_line: bool = False, in_ruby: bool = False
) -> _Text:
    text = _Text(is_line=is_line)
    # A stack of nodes, operators and gaps instead of recursion, because pages nest deeper than Python's limit.
    pending: list[LexborNode | str] = []
    pending += [*nodes][::-1]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            (text.add if node.strip() else text.gap)(node)
        elif node.is_text_node:
            text.add_string(node.text_content or "")
        elif node.is_element_node and not is_hidden(node) and (with_furniture or not is_furniture(node)):
            tag = node.tag or ""
            if not _add_whole(node, tag, text, in_ruby=in_ruby):
                text.gap(_gap(tag))
                if tag == "li":
                    text.begin_item(text.labels.pop(node.mem_id, "- "))
                elif tag == "dd":
                    text.begin_definition()
                elif tag == "ol":
                    text.labels |= item_labels(node)
                pending += [_gap(tag), *_parts(node, tag, text)[::-1]]
    return text


def _line(nodes: Iterable[LexborNode], *, in_ruby: bool = False) -> str:
    return str(_read(nodes, is_line=True, in_ruby=in_ruby))


def _gap(tag: str) -> str:
    return "\n\n" if tag in BLOCKS else "\n" if tag in LINES else " " if tag in CELLS else ""


def _parts(node: LexborNode, tag: str, text: _Text) -> list[LexborNode | str]:
    """Return the contents of an element: its nodes, with operators between the parts of formulas."""
    nodes = [*children(node)]
    if tag in LEVELS and not text.is_line:
        # Browsers count all that follows an unclosed heading as part of it. Here a heading's title
        # ends at the first block.
        title = [*takewhile(lambda child: child.tag not in BLOCKS, nodes)]
        words = _line(title) or _line(nodes)
        text.add_heading(words, LEVELS[tag])
        return [*nodes[len(title) :]] if _line(title) else []
    if operators := _OPERATORS.get(tag):
        pairs = zip(["", *operators], map(_grouped, _elements(node)), strict=False)
        return [each for operator, group in pairs for each in (operator, *group) if each] or [*nodes]
    if tag == "mroot" and len(parts := _elements(node)) == 2:
        return [*_grouped(parts[1]), "\u221a(", parts[0], ")"]
    if tag == "msqrt":
        return ["\u221a(", *nodes, ")"]
    is_exponent = tag == "sup" and text.ends_with_digit and EXPONENT.fullmatch(node.text()) and not node.css_first("a")
    return ["^", *nodes] if is_exponent else [*nodes]


def _elements(node: LexborNode) -> list[LexborNode]:
    return [child for child in children(node) if child.is_element_node]


def _grouped(part: LexborNode) -> list[LexborNode | str]:
    """Return a part of a formula, in parentheses if it has several parts itself."""
    inner = [part]
    while len(inner) == 1 and inner[0].tag in _GROUPS:
        inner = _elements(inner[0])
    return ["(", part, ")"] if len(inner) > 1 or (inner and len(_elements(inner[0])) > 1) else [part]


def _add_whole(node: LexborNode, tag: str, text: _Text, *, in_ruby: bool) -> bool:
    """Append an element if it is preformatted text, ruby or a table; return whether it is."""
    if tag == "ruby" and not in_ruby:
        base = _line((child for child in children(node) if child.tag not in RUBY_NOTES), in_ruby=True)
        reading = "".join(_line(children(note), in_ruby=True) for note in node.css("rt"))
        text.add(f"{base}({reading})" if reading else base)
    elif tag in RAW and not text.is_line:
        text.add_code(_INVISIBLE.sub("", _raw_text(node)).rstrip().strip("\r\n"))
    elif tag == "table" and not text.is_line and (found := data_table(node)):
        for caption in (child for child in children(node) if child.tag == "caption"):
            text.gap("\n\n")
            text.add_string(_line(children(caption)))
        text.gap("\n\n")
        text.add("\n".join(_table_lines(found)))
        text.gap("\n\n")
    elif tag == "input" and (boxes := _BOXES.get(node.attributes.get("type") or "")):
        if _is_labelled(node):
            text.gap(" ")
            text.add(boxes["checked" in node.attributes])
            text.gap(" ")
    else:
        return False
    return True


def _is_labelled(box: LexborNode) -> bool:
    """Return whether a check box belongs to a text, in contrast to the switch of a menu."""
    above, after = box.parent, box.next
    text = ""
    while after is not None and after.tag != "input" and not text:
        text = (after.text_content if after.is_text_node else after.text()) or ""
        text, after = text.strip(), after.next
    return above is not None and (above.tag == "p" or (above.tag in _LABELLED and bool(text)))


def _raw_text(root: LexborNode) -> str:
    parts: list[str] = []
    pending: list[LexborNode | str] = []
    pending += [*children(root)][::-1]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            parts.append(node)
        elif node.is_text_node:
            parts.append(node.text_content or "")
        elif node.is_element_node and not is_hidden(node):
            ends_line = node.tag == "br" or (node.tag in BLOCKS and parts and not parts[-1].endswith("\n"))
            pending += [*(["\n"] if ends_line else []), *[*children(node)][::-1]]
    return "".join(parts)


def _table_lines(table: TableNodes) -> Iterator[str]:
    rows = [[_line(children(cell)) if cell is not None else "" for cell in row] for row in table.rows]
    for number, cells in enumerate(with_joined_header(rows, table.merges, table.header_rows)):
        yield table_row(cells)
        if table.header_rows and not number:
            yield f"|{'---|' * len(cells)}"
