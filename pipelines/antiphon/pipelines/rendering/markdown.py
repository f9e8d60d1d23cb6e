"""Answers as Markdown with footnotes, all text escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.pipelines.rendering.segments import (
    CITED,
    NEAREST,
    NOT_CITED,
    citation_location,
    displayed_quote,
    displayed_segments,
    sentence_location,
)

if TYPE_CHECKING:
    from antiphon.pipelines.citations import Citation
    from antiphon.pipelines.nearest_sentences import NearestSentence

# Backslashes for characters that every Markdown dialect lets a backslash escape; entities for HTML, tables and
# formulas.
_ESCAPED = {character: f"\\{character}" for character in "\\`*_[]#"} | {c: f"&#{ord(c)};" for c in "&<>|~$="}
_BLOCKS = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+])")


def answer_markdown(
    text: str, citations: Sequence[Citation], caption: str, nearest: Sequence[NearestSentence] = ()
) -> str:
    """Return an answer with its citations bold and their locations as footnotes, and a caption.

    Footnotes have numbers already, so the numbers of passages are not shown.

    Args:
        text: the answer.
        citations: its citations.
        caption: the last line.
        nearest: the closest sentences, listed in place of footnotes if the answer is a refusal.
    """
    notes = {citation: number for number, citation in enumerate(citations, start=1)}
    segments = displayed_segments(text, citations)
    content = "".join(_segment(segment, notes[citation] if citation else None) for segment, citation in segments)
    footnotes = [f"[^{number}]: {CITED} {_plain(citation_location(each))}" for each, number in notes.items()]
    locations = _nearest_list(nearest) if nearest else footnotes or [f"*{NOT_CITED}*"]
    return "\n\n".join([_preserve_lines(content), *locations, f"*{_plain(caption)}*"]) + "\n"


def _nearest_list(nearest: Sequence[NearestSentence]) -> list[str]:
    found = [
        f"- \\[{each.passage}\\] {_plain(sentence_location(each))}: “{_plain(displayed_quote(each.text))}”"
        for each in nearest
    ]
    return [f"*{NEAREST}*", "\n".join(found)]


def _segment(text: str, note: int | None) -> str:
    if note is None:
        return _plain(text)
    lines = [f"**{_plain(line.strip())}**" for line in text.splitlines() if line.strip()]
    return "\n".join(lines) + f"[^{note}]"


def _plain(text: str) -> str:
    """Return the text without control characters and with inline markup escaped."""
    return "".join(_ESCAPED.get(character, character) for character in sanitize(text))


def _preserve_lines(text: str) -> str:
    """Return the text with its line breaks and indents, and no line that starts a list or a code block."""
    lines = (re.sub(r"^[ \t]+", lambda indent: "\u00a0" * len(indent[0]), line) for line in text.splitlines())
    return "  \n".join(_BLOCKS.sub(_escape_block_start, line) for line in lines)


def _escape_block_start(start: re.Match[str]) -> str:
    return f"\\{start[3]}" if start[3] else f"{start[1]}\\{start[2]}"
