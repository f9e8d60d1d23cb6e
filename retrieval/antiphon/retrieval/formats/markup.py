"""Find headings in Markdown, reStructuredText, plain text and papers, and navigation links in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from antiphon.retrieval.document import Heading
from antiphon.retrieval.segmentation import Span

_LINE = re.compile(r"[^\n]*\n?")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(.+?)(?:[ \t]+#+)?[ \t]*$")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NOT_A_TITLE = re.compile(r"\s*$| {4}|\t| {0,3}(?:[-+*>|#]|\d+[.)]\s|=+\s*$|<)")
_ALONE = re.compile(r"(?:(?<=\n\n)|(?<=\n\r\n)|\A)[^\s][^\n]{2,79}(?=\r?\n[ \t]*\r?\n)")
_PLAIN_TITLE = re.compile(r"""(?!\w+:)(?=.*[^\W\d_]{2})["'(]?[A-Z0-9À-Þ].*[\w"')?]$""")
_MOST_WORDS = 12
_SECTION = re.compile(
    r"(?:(\d{1,2}(?:\.\d{1,2}){0,2}\.?)\s+[A-Z][^.!?;]{2,70}[\w)]|"
    r"Abstract|Introduction|Conclusions?|Discussion|Acknowledge?ments|References|Appendix(?: [A-Z0-9].{0,60})?)"
)
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{1,}\s*$")
_ITEM = r"(?:[-*+]|\d{1,3}[.)])[ \t]+"
_TARGET = r"(?:\((?:[^()\n]|\([^()\n]*\))*\)|\[[^]\n]*\])"
_IMAGE = rf"!\[[^]\n]*\]{_TARGET}"
_SIGNPOST = re.compile(
    rf"""^(?:
        (?:[ \t]*{_ITEM}|(?<!\S\n)(?<!\S\r\n))\[(?:(?!\]\().)+\]\(\#[^)\s]*\)  # of a table of contents
        |[ ]{{0,3}}\[(?!\^)[^]\n]+\]:(?!:)[ \t]*\S+(?:[ \t]+(?:"[^"\n]*"|'[^'\n]*'|\([^)\n]*\)))?  # of a reference
        |[ \t]*(?:{_ITEM})?(?:(?:{_IMAGE}|\[{_IMAGE}\]{_TARGET})(?:[ \t]|&nbsp;|<br[ ]?/?>)*+)+  # images and badges
    )(?=\s*\Z|[ \t\r]*\n[ \t\r]*(?:\n|[\[!#<]|{_ITEM}))  # and no text goes on below
    """,
    re.MULTILINE | re.VERBOSE,
)


def markdown_headings(text: str) -> tuple[Heading, ...]:
    """Return the ATX (``# title``) and setext (underlined) headings of Markdown, ignoring fenced code."""
    headings: list[Heading] = []
    fence = ""
    before = (0, "")
    for start, line in _lines(text):
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]) else fence
            line = ""
        elif mark:
            fence, line = mark[1], ""
        elif atx := _ATX.match(line):
            headings.append(Heading(start, start + len(line), len(atx[1]), atx[2].strip()))
            line = ""
        elif (underline := _SETEXT.match(line)) and not _NOT_A_TITLE.match(before[1]):
            level = 1 if underline[1][0] == "=" else 2
            headings.append(Heading(before[0], start + len(line), level, before[1].strip()))
            line = ""
        before = (start, line)
    return tuple(headings)


def markdown_signposts(text: str) -> Iterator[Span]:
    """Yield the spans of Markdown that carry no prose, in order: headings and lines that consist of links only.

    Such lines are links to an anchor alone in a list item or paragraph, link reference definitions, images and badges.
    """
    headings = ((heading.start, heading.end) for heading in markdown_headings(text))
    lines = (match.span() for match in _SIGNPOST.finditer(text))
    last = 0
    for start, end in sorted([*headings, *lines], key=lambda span: (span[0], -span[1])):
        if start >= last:  # do not yield a heading twice if it consists of links
            yield start, end
            last = end


def rst_headings(text: str) -> tuple[Heading, ...]:
    """Return the section titles of reStructuredText; the first use of an underline style sets its level."""
    headings: list[Heading] = []
    styles: list[tuple[str, bool]] = []
    above, title = (0, ""), (0, "")
    for start, line in _lines(text):
        if _ADORNMENT.match(line) and _is_title(title[1], line):
            over = bool(_ADORNMENT.match(above[1])) and above[1].strip() == line.strip()
            style = (line[0], over)
            if style not in styles:
                styles.append(style)
            first = above[0] if over else title[0]
            headings.append(Heading(first, start + len(line), 1 + styles.index(style), title[1].strip()))
            above, title = (start, ""), (start, "")
        else:
            above, title = title, (start, line)
    return tuple(headings)


def plain_headings(text: str) -> tuple[Heading, ...]:
    """Return the lines of plain text that look like titles: short, between empty lines, not ending a sentence.

    If the first line of the text looks like a title, it is the only heading of level 1.
    """
    headings: list[Heading] = []
    for match in _ALONE.finditer(text):
        line = match[0].strip("\ufeff \t\r")
        if _PLAIN_TITLE.match(line) and len(line.split()) <= _MOST_WORDS:
            level = 1 if match.start() == 0 else 2
            headings.append(Heading(match.start(), match.end(), level, line))
    return tuple(headings)


def numbered_headings(text: str) -> tuple[Heading, ...]:
    """Return the lines of a paper that look like section titles: numbered ones, and usual ones such as "Abstract".

    A heading is short and does not end a sentence. A numbered one follows a line that ends a sentence; ``3.2`` has
    level 2.
    """
    headings: list[Heading] = []
    before = ""
    for start, line in _lines(text):
        words = line.strip()
        match = _SECTION.fullmatch(words)
        is_after = (
            not before or before[-1] in ".:!?" or before.isdigit() or (bool(headings) and headings[-1].title == before)
        )
        if match and (is_after or not match[1]) and len(words.split()) <= _MOST_WORDS:
            level = 1 + match[1].rstrip(".").count(".") if match[1] else 1
            headings.append(Heading(start, start + len(line), level, words))
        before = words or before
    return tuple(headings)


def _is_title(title: str, underline: str) -> bool:
    words = title.strip()
    return bool(words) and not _ADORNMENT.match(title) and len(underline.strip()) >= len(words)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for match in _LINE.finditer(text):
        if match[0]:
            yield match.start(), match[0].rstrip("\r\n")
