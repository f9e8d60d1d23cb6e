"""Blocks that indentation marks: in reStructuredText, and listings below a colon in plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from antiphon.retrieval.block import Block, BlockKind

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}$")
_SIMPLE_TABLE = re.compile(r"=+(?:[ \t]+=+)+$")
_GRID_TABLE = re.compile(r"\+(?:[-=]+\+)+$")
_DIRECTIVE = re.compile(r"\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([\w:.+-]+?)::(?:[ \t]+|(?=\r?\n|$))")
_FOOTNOTE = re.compile(r"\.\.[ \t]+\[[^]\n]+\][ \t]+")
_EXPLICIT = re.compile(r"\.\.(?:[ \t]|\r?\n|$)|__[ \t]")
_OPTION = re.compile(r":[\w .-]+:(?:[ \t]|\r?\n|$)")
_LIST_MARKER = re.compile(r"(?:[-*+•]|(?:\d{1,3}|[a-zA-Z]|#)[.)])[ \t]+")
_VERSION = re.compile(r"version\w+|deprecated")
_CODE_DIRECTIVES = frozenset(
    re.findall(
        "[a-z-]+",
        "code code-block csv-table doctest graphviz highlight-code-block ipython ipython-input jupyter-execute math "
        "mermaid parsed-literal plot productionlist prompt sourcecode testcode testoutput testsetup",
    )
)
_HIDDEN_DIRECTIVES = frozenset(
    re.findall(
        "[a-z-]+",
        "autoclass autodata autoexception autofunction automethod automodule autosummary container contents "
        "currentmodule default-domain default-role figure highlight ifconfig image include index literalinclude meta "
        "module only program raw role rst-class sectionauthor sectnum tabularcolumns tags testcleanup toctree",
    )
)
_HIDDEN_BODIES = frozenset(["autosummary", "index", "meta", "raw", "toctree"])
_MOST_LISTING_LINES = 20
_ENDS_SENTENCE = re.compile(r"[\w)\"'”’][.!?][\"'”’)]*$")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a text from ``start`` to ``end``, its characters without white space around, and its indentation."""

    start: int
    end: int
    text: str
    indent: int

    @property
    def first(self) -> int:
        """The first character that is not white space."""
        return self.start + self.indent


def _lines(text: str, start: int, end: int) -> list[_Line]:
    found = []
    for match in _LINE.finditer(text, start, end):
        indent = len(match[0]) - len(match[0].lstrip(" \t"))
        found.append(_Line(match.start(), match.end(), match[0].strip(), indent))
    return found


def rst_blocks(text: str, start: int, end: int) -> Iterator[Block]:
    """Yield the blocks of reStructuredText in order; together they cover all of it.

    Titles with their underlines, targets, comments, and the names and options of directives are `BlockKind.MARKUP`;
    those of a directive with code are part of the code. The text of a directive such as ``note`` is text, and so are
    the argument of one such as ``option``, and ``versionadded`` with its version.

    Args:
        text: The text.
        start: The first character.
        end: The character after the last one.
    """
    yield from _merged(_RstScanner(text, _lines(text, start, end)).scan(), start, end)


class _RstScanner:
    """Finds the blocks of reStructuredText that are not text, line by line."""

    def __init__(self, text: str, lines: Sequence[_Line]) -> None:
        self._text = text
        self._lines = lines

    def scan(self) -> Iterator[Block]:
        place = 0
        while place < len(self._lines):
            found, place = self._block(place)
            yield from found

    def _block(self, place: int) -> tuple[list[Block], int]:
        """Return the blocks that begin with a line, and the line after them; blocks of text are left out."""
        line = self._lines[place]
        if not line.text:
            return [], place + 1
        if title_end := _title_end(self._lines, place):
            return [self._of(BlockKind.MARKUP, place, title_end)], title_end
        for border, table_end in ((_SIMPLE_TABLE, self._simple_table_end), (_GRID_TABLE, self._grid_table_end)):
            if border.match(line.text) and (last := table_end(place)) > place + 1:
                return [self._of(BlockKind.TABLE, place, last)], last
        if directive := _DIRECTIVE.match(self._text, line.first, line.end):
            return self._directive(place, directive)
        if footnote := _FOOTNOTE.match(self._text, line.first, line.end):
            return [Block(BlockKind.MARKUP, line.first, footnote.end())], place + 1
        if _EXPLICIT.match(self._text, line.first, line.end):
            last = self._body_end(place + 1, line.indent)
            return [self._of(BlockKind.MARKUP, place, last)], last
        if line.text.startswith(">>> "):
            last = self._paragraph_end(place)
            return [self._of(BlockKind.CODE, place, last)], last
        return self._paragraph(place)

    def _simple_table_end(self, place: int) -> int:
        borders = 0
        for at in range(place + 1, len(self._lines)):
            if _SIMPLE_TABLE.match(self._lines[at].text):
                borders += 1
                if borders == 2 or at + 1 == len(self._lines) or not self._lines[at + 1].text:
                    return at + 1
        return place

    def _grid_table_end(self, place: int) -> int:
        last = place
        while last < len(self._lines) and self._lines[last].text[:1] in ("+", "|"):
            last += 1
        return last

    def _directive(self, place: int, match: re.Match[str]) -> tuple[list[Block], int]:
        line, name = self._lines[place], match[1].rpartition(":")[2].lower()
        body = place + 1
        while body < len(self._lines) and self._lines[body].indent > line.indent:
            if not _OPTION.match(self._text, self._lines[body].first, self._lines[body].end):
                break
            body += 1
        if name in _CODE_DIRECTIVES:
            last = self._code_end(body, line.indent)
            return [self._of(BlockKind.CODE if last > body else BlockKind.MARKUP, place, last)], last
        if name in _HIDDEN_DIRECTIVES:
            last = self._body_end(body, line.indent) if name in _HIDDEN_BODIES else body
            return [self._of(BlockKind.MARKUP, place, last)], last
        marker = [] if _VERSION.fullmatch(name) else [Block(BlockKind.MARKUP, line.first, match.end())]
        options = [self._of(BlockKind.MARKUP, place + 1, body)] if body > place + 1 else []
        return [*marker, *options], body

    def _paragraph(self, place: int) -> tuple[list[Block], int]:
        """Return the literal block below a paragraph that ends with ``::``, and the line after both."""
        last = self._paragraph_end(place)
        text = self._lines[last - 1].text
        code_end = self._code_end(last, self._lines[place].indent) if text.endswith("::") else last
        if code_end == last:
            return [], last
        return [self._of(BlockKind.CODE, last - 1 if text == "::" else last, code_end)], code_end

    def _code_end(self, place: int, indent: int) -> int:
        """Return the line after the indented code from a line on; that line if there is no code."""
        first = next((line for line in self._lines[place:] if line.text), None)
        return place if first is None or first.indent <= indent else self._body_end(place, first.indent - 1)

    def _body_end(self, place: int, indent: int) -> int:
        """Return the line after the last one, from a line on, that is indented by more; blank lines do not count."""
        last = place
        for at in range(place, len(self._lines)):
            if self._lines[at].text:
                if self._lines[at].indent <= indent:
                    break
                last = at + 1
        return last

    def _paragraph_end(self, place: int) -> int:
        return next((at for at in range(place, len(self._lines)) if not self._lines[at].text), len(self._lines))

    def _of(self, kind: BlockKind, first: int, last: int) -> Block:
        return Block(kind, self._lines[first].start, self._lines[last - 1].end)


def _title_end(lines: Sequence[_Line], place: int) -> int:
    """Return the line after a title and its underline; 0 if there is no title."""
    first, second, third = [*(each.text for each in lines[place : place + 3]), "", ""][:3]
    if lines[place].indent or (place and lines[place - 1].text):
        return 0
    if _ADORNMENT.match(first) and second and first == third:
        return place + 3
    is_title = _ADORNMENT.match(second) and not _ADORNMENT.match(first) and len(second) >= min(len(first), 4)
    return place + 2 if is_title else 0


def plain_blocks(text: str, start: int, end: int) -> Iterator[Block]:
    """Yield the blocks of plain text in order: text, underlined titles, and indented listings below a colon as code.

    A listing with prompts of Python stays text, and so does an indented paragraph of sentences or a list.

    Args:
        text: The text, without fences and tables.
        start: The first character.
        end: The character after the last one.
    """
    yield from _merged(_titles_and_listings(_lines(text, start, end)), start, end)


def _titles_and_listings(lines: Sequence[_Line]) -> Iterator[Block]:
    before: _Line | None = None
    place = 0
    while place < len(lines):
        line, last = lines[place], place + 1
        if line.text and (title_end := _title_end(lines, place)):
            yield Block(BlockKind.MARKUP, line.start, lines[title_end - 1].end)
            before, place = None, title_end
            continue
        if line.text and before is not None and before.text.endswith(":") and line.indent > before.indent + 1:
            listed = [line]
            while last < len(lines) and (not lines[last].text or lines[last].indent >= line.indent):
                listed += [lines[last]] if lines[last].text else []
                last += 1
            if lines[place - 1].text == "" and _is_listing(listed):
                yield Block(BlockKind.CODE, line.start, listed[-1].end)
                before = None
                place = last
                continue
        before = line if line.text else before
        place += 1


def _is_listing(lines: Sequence[_Line]) -> bool:
    if len(lines) > _MOST_LISTING_LINES or _LIST_MARKER.match(lines[0].text):
        return False
    sentences = sum(bool(_ENDS_SENTENCE.search(line.text)) for line in lines)
    return not sentences and not any(line.text.startswith((">>>", "...")) for line in lines)


def _merged(found: Iterator[Block], start: int, end: int) -> Iterator[Block]:
    """Yield the found blocks and, between them, blocks of text, so that all characters are covered."""
    position = start
    for block in found:
        if block.start > position:
            yield Block(BlockKind.TEXT, position, block.start)
        if block.end > block.start:
            yield block
        position = block.end
    if position < end:
        yield Block(BlockKind.TEXT, position, end)
