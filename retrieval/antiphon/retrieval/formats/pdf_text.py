"""The text of PDF pages: paragraphs, tables and footnotes, joined across page breaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from antiphon.retrieval.formats.pdf_layout import SAME_LINE, SOFT_HYPHEN, Line
from antiphon.retrieval.formats.pdf_tables import blocks_of

_HYPHEN_AT_END = re.compile(r"(?<=[^\W\d_])[-\xad\ufffe\u2010]\Z")
_HYPHENATED = re.compile(rf"(\w*[^\W\d_])[{SOFT_HYPHEN}\xad](\w+)")
_ENDS_SENTENCE = re.compile(r"[.!?:;…。！？।॥؟][\"'”’»)\]」』]*\Z")
_TABLE_END = re.compile(r"(?:\A|\n)(?P<row>\| [^\n]+ \|)\Z")
_TABLE_START = re.compile(r"(?P<row>\| [^\n]+ \|)(?P<rule>\n\|(?: --- \|)+)?(?:\n|\Z)")
_BAR = re.compile(r"(?<!\\)\|")
_NOTE = re.compile(r"(?:\d{1,3}|[*†‡§¹²³⁴-⁹]+|\[\d{1,3}\])[.)]?\s*\S")
_SMALL = 0.92  # footnotes have letters smaller than this share of the usual size
_PARAGRAPH = 1.6  # paragraphs are at least this many times the usual distance of lines apart
_FULL_LINE = 30  # minimum number of characters
_CELL_GAP = "   "


def pages_text(pages: Sequence[Sequence[Line]]) -> list[str]:
    """Return the text of each page.

    Footnotes that interrupt a sentence are moved below the sentence's paragraph on the next page.

    Args:
        pages: The lines of each page in reading order; `SOFT_HYPHEN` joins a line to the next line.
    """
    texts: list[str] = []
    note = ""
    for place, lines in enumerate(pages):
        body = _without_notes(lines)
        table = _TABLE_END.search(texts[-1]) if texts else None
        text = page_text(body, len(_BAR.findall(table["row"])) - 1 if table else 0)
        if note:
            paragraph, gap, rest = text.partition("\n\n")
            goes_on = bool(paragraph) and _continued(texts[-1], paragraph)[1] != "\n\n"
            texts[-1] += "" if goes_on else f"\n\n{note}"
            text = f"{paragraph}\n\n{note}{gap}{rest}" if goes_on else text
        note = page_text(lines[len(body) :])
        texts.append(f"{text}\n\n{note}".strip("\n") if place + 1 == len(pages) and note else text)
    return texts


def page_text(lines: Sequence[Line], columns: int = 0) -> str:
    """Return the text of a page, with tables in Markdown and empty lines between paragraphs.

    Args:
        lines: The lines in reading order.
        columns: The number of columns of the table at the end of the previous page; 0 without one.
    """
    blocks = blocks_of(lines, columns)
    return "\n\n".join(block if isinstance(block, str) else _prose(block) for block in blocks)


def _prose(lines: Sequence[Line]) -> str:
    pitches = [above.bottom - line.bottom for above, line in pairwise(lines)]
    positive = sorted(pitch for pitch in pitches if pitch > SAME_LINE) or [0.0]
    usual = positive[len(positive) // 4]  # most pages have more lines than paragraphs
    text = "".join(line.text for line in lines[:1])
    for above, line, pitch in zip(lines, lines[1:], pitches, strict=False):
        if abs(pitch) < SAME_LINE and line.left >= above.right:
            gap = _CELL_GAP
        elif text.endswith(SOFT_HYPHEN):
            gap = ""
        elif pitch < -usual:  # the top of the next column
            text, gap = _continued(text, line.text)
        else:
            gap = "\n\n" if pitch > _PARAGRAPH * usual > 0 else "\n"
        text += gap + line.text
    return text


def joined(pages: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Join the pages so that sentences and tables continue on the next page; return the text and the pages' starts."""
    parts: list[str] = []
    starts, length = [], 0
    for page in pages:
        if page and parts:
            page = _without_header(parts, page)
            before, gap = _continued(parts[-1], page)
            length += len(before) - len(parts[-1]) + len(gap)
            parts[-1:] = [before, gap]
        starts.append(length)
        if page:
            parts.append(page)
            length += len(page)
    return "".join(parts), tuple(starts)


def _continued(text: str, following: str) -> tuple[str, str]:
    """Return the text without the hyphen of a divided word at its end, and the gap before the following text."""
    if _same_table(text, following):
        return text, "\n"
    if _HYPHEN_AT_END.search(text[-2:]) and following[0].islower():
        return text[:-1], ""
    last = text[-2000:].split("\n")
    is_full = len(last) > 2 and len(last[-1]) > max(_FULL_LINE, 0.7 * max(map(len, last[-12:-1])))
    goes_on = following[0].islower() or is_full
    return text, "\n" if goes_on and not _ENDS_SENTENCE.search(text[-9:]) else "\n\n"


def without_hyphens(pages: Sequence[str]) -> list[str]:
    """Join words that are hyphenated at the end of a line.

    The hyphen stays before a capital letter, or if the word occurs with a hyphen elsewhere in the
    document, such as ``well-known``.

    Args:
        pages: The text of each page, in which `SOFT_HYPHEN` marks the hyphens.
    """
    compounds = {word.casefold() for page in pages for word in re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)+", page)}

    def join(match: re.Match[str]) -> str:
        first, second = match[1], match[2]
        compound = f"{first}-{second}"
        return compound if compound.casefold() in compounds or not second[0].islower() else first + second

    return [_HYPHENATED.sub(join, page).replace(SOFT_HYPHEN, "-").replace("\xad", "") for page in pages]


def _same_table(text: str, following: str) -> re.Match[str] | None:
    """Return the first row of ``following`` if it continues the text's last table, else None."""
    last, first = _TABLE_END.search(text[-10_000:]), _TABLE_START.match(following)
    bars = [len(_BAR.findall(match["row"])) for match in (last, first) if match]
    return first if len(bars) == 2 and bars[0] == bars[1] else None


def _without_header(parts: Sequence[str], page: str) -> str:
    """Return a page without the repeated header of a table that continues from the previous page."""
    first = _same_table(parts[-1], page)
    if first is None or not first["rule"]:
        return page
    is_repeated = any(f"{first['row']}\n" in part for part in parts)
    return page[first.end() :] if is_repeated else first["row"] + page[first.end("rule") :]


def _without_notes(lines: Sequence[Line]) -> Sequence[Line]:
    """Return the lines of a page without its footnotes.

    Footnotes are the lines in smaller letters at the end. The first of them begins with a footnote
    mark.
    """
    usual = median(line.size for line in lines) if lines else 0.0
    small = len(lines)
    while small and 0 < lines[small - 1].size < _SMALL * usual:
        small -= 1
    marked = (place for place in range(small, len(lines)) if _NOTE.match(lines[place].text))
    return lines[: next(marked, len(lines))]
