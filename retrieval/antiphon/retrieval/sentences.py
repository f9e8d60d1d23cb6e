"""Where sentences begin and end: a small rule for prose, lists and code. Knows nothing of tokens or of documents."""

from __future__ import annotations

import re
from collections.abc import Iterator

Span = tuple[int, int]

_PARAGRAPH = re.compile(r"(?:\r?\n[ \t]*){2,}")
_END = re.compile(
    r"""[.!?…]+["'”’»)\]]*(?=\s+["'“‘«(\[]?[^\sa-z])"""  # a stop, then no small letter
    r"""|[。！？]+[」』”’）]*"""
    r"""|(?=\r?\n[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t])"""  # an item of a list begins
)
_SHORT = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|gen|gov|sen|rep|sgt|capt|fig|figs|eq|eqs|vol|pp|ch|vs|cf|al|e\.g|i\.e|"
    r"approx|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec|u\.s)|\b[A-Z]|^\s*\d{1,3})\.$",
    re.IGNORECASE,
)
_LONGEST_SHORT = 12
_WHITE = " \t\r\n\f\v\x1c\x1d\x1e\x1f\x85\xa0\ufeff"


def sentences(text: str, start: int = 0, end: int | None = None) -> Iterator[Span]:
    """The spans of the sentences of ``text[start:end]``, in order; together they hold all but white space.

    A sentence never crosses an empty line. Abbreviations, initials and the number of a list item end none.
    """
    end = len(text) if end is None else end
    for first, last in _split(text, start, end, _PARAGRAPH):
        position = first
        for match in _END.finditer(text, first, last):
            if not _SHORT.search(text[max(position, match.end() - _LONGEST_SHORT) : match.end()]):
                yield from trimmed(text, position, match.end())
                position = match.end()
        yield from trimmed(text, position, last)


def trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    """The span without the white space around it; nothing if there is nothing else."""
    while start < end and (text[start] in _WHITE or text[start].isspace()):
        start += 1
    while start < end and (text[end - 1] in _WHITE or text[end - 1].isspace()):
        end -= 1
    if start < end:
        yield start, end


def lines(text: str, start: int, end: int) -> Iterator[Span]:
    """The spans of the lines of ``text[start:end]`` that hold more than white space."""
    for first, last in _split(text, start, end, re.compile(r"[\r\n]+")):
        yield from trimmed(text, first, last)


def words(text: str, start: int, end: int) -> Iterator[Span]:
    """The spans of the words of ``text[start:end]``."""
    for first, last in _split(text, start, end, re.compile(r"\s+")):
        yield from trimmed(text, first, last)


def _split(text: str, start: int, end: int, gap: re.Pattern[str]) -> Iterator[Span]:
    position = start
    for match in gap.finditer(text, start, end):
        yield position, match.start()
        position = match.end()
    yield position, end
