"""Split text into blocks (prose, code, tables, markup), sentences, lines and words, as character spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

import regex

from antiphon.retrieval.block import Block, BlockKind, Markup, Span
from antiphon.retrieval.indented_blocks import plain_blocks

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_FENCE = re.compile(
    r"[ \t]*(?:>[ \t]*)?(?:(`{3,}|~{3,})[ \t]*(?:\{([\w:-]+)\})?"
    r"|(:{3,})[ \t]*(?:\{[.#]?([\w:-]+)[^}\n]*\}|([a-zA-Z][\w-]*)(?=[ \t\[{]|\r?\n?$)|(?=\r?\n?$)))"
)
_CODE_FENCE = re.compile(r"[ \t]*(?:>[ \t]*)?(?:`{3,}|~{3,})")
_CODE_DIRECTIVES = frozenset(
    re.findall(
        "[a-z-]+",
        "code code-block code-cell csv-table doctest eval-rst graphviz ipython jupyter-execute list-table "
        "literalinclude math mermaid parsed-literal prompt raw sourcecode testcode testoutput toctree",
    )
)
_TABLE_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*\r?\n?$")
_TABLE_RULE = re.compile(
    r"[ \t]*(?:\|(?:[ \t]*:?-+:?[ \t]*\|)+|\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)+\|?)[ \t]*\r?\n?$"
)
_CHARACTER = regex.compile(r"\X")
_PARAGRAPH_BREAK = re.compile(r"(?:\r?\n[ \t]*){2,}+(?!:[ \t])")  # not before the definition of a term
_SENTENCE_END = re.compile(
    # End punctuation, or the end of a question in bold, if no lowercase letter follows.
    r"""(?:[.!?…]+["'”’»)\]]*|\?[*_]{1,3})(?=\s+["'“‘«(\[]?[^\sa-z])"""
    r"""|(?:[。！？｡]|．(?!\d)|[!?](?=[\u3040-\u30ff\u3400-\u9fff]))+[」』”’）》〉】]*"""  # Chinese, Japanese
    r"""|[।॥؟۔።፧។៕။།༎]+["'”’»)\]]*"""  # Indic, Arabic, Ethiopic, Khmer, Burmese, Tibetan
    r"""|(?=\r?\n[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t])"""  # before a list item
)
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|gen|gov|sen|rep|sgt|capt|fig|figs|eq|eqs|vol|pp|ch|vs|cf|al|e\.g|i\.e|"
    r"approx|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec|u\.s)|\b[A-Z]|^\s*\d{1,3})\.$",
    re.IGNORECASE,
)
_LONGEST_ABBREVIATION = 12
_WHITESPACE = " \t\r\n\f\v\x1c\x1d\x1e\x1f\x85\xa0\ufeff"


class LineRole(Enum):
    """Whether a line is text, code or a fence."""

    TEXT = "text"
    DIRECTIVE = "directive"
    CODE = "code"


class FenceTracker:
    """Tells, line by line, whether a line is text, fenced code, or a fence of a MyST directive with prose.

    A directive such as ``{note}`` contains prose, so the lines between its fences are text.
    """

    def __init__(self, *, tilde_fences: bool = True) -> None:
        self.code_fence = ""
        """The opening fence of the code at the current line; empty in text."""
        self._tilde_fences = tilde_fences
        self._directives: list[str] = []

    def role_of(self, line: str) -> LineRole:
        """Return the role of the next line. The fences of code count as code."""
        mark = _FENCE.match(line)
        fence, directive = (mark[1] or mark[3], mark[2] or mark[4] or mark[5] or "") if mark else ("", "")
        is_bare = bool(fence) and not line.strip(" \t\r\n>").strip(fence[0])
        if self.code_fence:
            if is_bare and fence.startswith(self.code_fence):
                self.code_fence = ""
            return LineRole.CODE
        if not fence or (fence[0] == "~" and not self._tilde_fences):
            return LineRole.TEXT
        if is_bare and self._directives and fence.startswith(self._directives[-1]):
            self._directives.pop()
            return LineRole.DIRECTIVE
        if directive and directive not in _CODE_DIRECTIVES:
            self._directives.append(fence)
            return LineRole.DIRECTIVE
        if fence[0] == ":" and is_bare:
            return LineRole.TEXT
        self.code_fence = fence
        return LineRole.CODE


def blocks(
    text: str,
    start: int = 0,
    end: int | None = None,
    *,
    markup: Markup = Markup.MARKDOWN,
    in_table: bool = False,
    code: Sequence[Span] = (),
) -> Iterator[Block]:
    """Yield the blocks of ``text[start:end]`` in order; together they cover the whole text.

    Args:
        end: The index after the last character. None: the end of the text.
        in_table: Whether the text begins in a table, below its header.
        code: Spans that are known to be code, in order.
    """
    stop = len(text) if end is None else end
    position = start
    for first, last in [*code, (stop, stop)]:
        first, last = min(max(first, position), stop), min(last, stop)
        if position < first:
            yield from _parsed_blocks(text, position, first, markup, in_table and position == start)
        if first < last:
            yield Block(BlockKind.CODE, first, last)
        position = max(position, last)


def _parsed_blocks(text: str, start: int, end: int, markup: Markup, in_table: bool) -> Iterator[Block]:
    for block in _fenced_blocks(text, start, end, markup, in_table):
        if markup is Markup.PLAIN and block.kind is BlockKind.TEXT:
            yield from plain_blocks(text, block.start, block.end)
        else:
            yield block


def _fenced_blocks(text: str, start: int, stop: int, markup: Markup, in_table: bool) -> Iterator[Block]:
    kind, first = BlockKind.TEXT, start
    fences = FenceTracker(tilde_fences=markup is Markup.MARKDOWN)
    is_open_table = in_table  # whether the current line is in a table whose rows may have no bars around them
    for match in _LINE.finditer(text, start, stop):
        line, position = match[0], match.start()
        was_code = bool(fences.code_fence)
        is_code = fences.role_of(line) is LineRole.CODE
        is_open_table = not is_code and "|" in line and (is_open_table or has_header_row(text, position, stop))
        is_table = is_open_table or _TABLE_ROW.match(line)
        line_kind = BlockKind.CODE if is_code else BlockKind.TABLE if is_table else BlockKind.TEXT
        if line_kind is not kind or (is_code and not was_code):
            if first < position:
                yield Block(kind, first, position)
            kind, first = line_kind, position
        if is_code and was_code and not fences.code_fence:
            yield Block(kind, first, match.end())
            kind, first = BlockKind.TEXT, match.end()
    if first < stop:
        yield Block(kind, first, stop)


def code_lines(code: str) -> list[str]:
    """Return the non-empty lines of a code block, without its fences."""
    return [line for line in code.splitlines() if line.strip() and not _CODE_FENCE.match(line)]


def has_header_row(text: str, start: int, end: int) -> bool:
    """Return whether a line is the header of a table: the line below consists of dashes between bars.

    Args:
        start: The first character of the line.
        end: The end of the text to examine.
    """
    first = text.find("\n", start, end)
    if first < 0 or "|" not in text[start:first] or _TABLE_RULE.match(text[start:first]):
        return False
    second = text.find("\n", first + 1, end)
    return bool(_TABLE_RULE.match(text[first + 1 : second if second >= 0 else end]))


def table_rows(table: str) -> tuple[str, list[str]]:
    """Return a table's header row (empty if it has none) and its other rows, without outer bars."""
    rows = [row for row in table.splitlines() if row.strip()]
    has_header = len(rows) > 1 and bool(_TABLE_RULE.match(rows[1]))
    body = [row for row in rows[1 if has_header else 0 :] if not _TABLE_RULE.match(row)]
    return _cells(rows[0]) if has_header else "", [_cells(row) for row in body]


def sentences(text: str, start: int = 0, end: int | None = None) -> Iterator[Span]:
    """Yield the spans of the sentences of ``text[start:end]`` in order.

    Together, the sentences cover everything except white space. A sentence never crosses an empty
    line, except between a term and a definition that begins with a colon. Abbreviations, initials
    and the number of a list item do not end a sentence.

    Args:
        end: The index after the last character. None: the end of the text.
    """
    end = len(text) if end is None else end
    for first, last in _split(text, start, end, _PARAGRAPH_BREAK):
        position = first
        for match in _SENTENCE_END.finditer(text, first, last):
            if not _ABBREVIATION.search(text[max(position, match.end() - _LONGEST_ABBREVIATION) : match.end()]):
                yield from trimmed(text, position, match.end())
                position = match.end()
        yield from trimmed(text, position, last)


def paragraphs(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the spans between the empty lines of ``text[start:end]``, with the indentation of their first lines."""
    for first, last in _split(text, start, end, _PARAGRAPH_BREAK):
        for begin, stop in trimmed(text, first, last):
            yield text.rfind("\n", first, begin) + 1 or first, stop


def lines(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the spans of the lines of ``text[start:end]`` that are not blank."""
    for first, last in _split(text, start, end, re.compile(r"[\r\n]+")):
        yield from trimmed(text, first, last)


def words(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the spans of the words of ``text[start:end]``."""
    for first, last in _split(text, start, end, re.compile(r"\s+")):
        yield from trimmed(text, first, last)


def character_boundary(text: str, start: int, position: int, end: int) -> int:
    """Return the first boundary between user-perceived characters (grapheme clusters) from ``position`` on.

    Return ``position`` if there is no boundary before ``end``.

    Args:
        start: A boundary before ``position``.
        end: The end of the text to examine.
    """
    starts = (match.start() for match in _CHARACTER.finditer(text, start, end))
    return next((place for place in starts if place >= position), position)


def trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the span without surrounding whitespace, or nothing if it holds only whitespace.

    Args:
        start: The first character of the span.
    """
    while start < end and (text[start] in _WHITESPACE or text[start].isspace()):
        start += 1
    while start < end and (text[end - 1] in _WHITESPACE or text[end - 1].isspace()):
        end -= 1
    if start < end:
        yield start, end


def _cells(row: str) -> str:
    return row.strip().strip("|").strip()


def _split(text: str, start: int, end: int, gap: re.Pattern[str]) -> Iterator[Span]:
    position = start
    for match in gap.finditer(text, start, end):
        yield position, match.start()
        position = match.end()
    yield position, end
