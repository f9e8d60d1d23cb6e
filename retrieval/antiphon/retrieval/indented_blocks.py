"""Split plain text into blocks: underlined titles, indented listings below a colon, and text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from antiphon.retrieval.block import Block, BlockKind

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}$")
_LIST_MARKER = re.compile(r"(?:[-*+•]|(?:\d{1,3}|[a-zA-Z]|#)[.)])[ \t]+")
_MOST_LISTING_LINES = 20
_ENDS_SENTENCE = re.compile(r"[\w)\"'”’][.!?][\"'”’)]*$")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a text: its span, its text without surrounding white space, and its indentation."""

    start: int
    end: int
    text: str
    indent: int


def _lines(text: str, start: int, end: int) -> list[_Line]:
    found = []
    for match in _LINE.finditer(text, start, end):
        indent = len(match[0]) - len(match[0].lstrip(" \t"))
        found.append(_Line(match.start(), match.end(), match[0].strip(), indent))
    return found


def _title_end(lines: Sequence[_Line], place: int) -> int:
    """Return the index of the line after a title and its underline; 0 if there is no title."""
    first, second, third = [*(each.text for each in lines[place : place + 3]), "", ""][:3]
    if lines[place].indent or (place and lines[place - 1].text):
        return 0
    if _ADORNMENT.match(first) and second and first == third:
        return place + 3
    is_title = _ADORNMENT.match(second) and not _ADORNMENT.match(first) and len(second) >= min(len(first), 4)
    return place + 2 if is_title else 0


def plain_blocks(text: str, start: int, end: int) -> Iterator[Block]:
    """Split plain text into blocks, and yield the blocks in the order of the text.

    A block is text, an underlined title, or code: an indented listing after a line that ends with a
    colon. Indented sentences, lists and Python sessions with prompts count as text.

    Args:
        text: The text, without fences and tables.
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
    """Yield the found blocks, and blocks of text for the gaps between them."""
    position = start
    for block in found:
        if block.start > position:
            yield Block(BlockKind.TEXT, position, block.start)
        if block.end > block.start:
            yield block
        position = block.end
    if position < end:
        yield Block(BlockKind.TEXT, position, end)
