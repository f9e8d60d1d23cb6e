"""Answers as Markdown, with footnotes: every text in it escaped. Knows no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.pipelines.rendering.segments import (
    CITED,
    NEAREST,
    NOT_CITED,
    citation_place,
    cited_segments,
    sentence_place,
)
from antiphon.pipelines.rendering.visible import visible

if TYPE_CHECKING:
    from antiphon.pipelines.citations import Citation
    from antiphon.pipelines.nearest import NearestSentence

# Backslashes where every Markdown takes them; entities where some do not, or read HTML, tables and formulas first.
_ESCAPED = {character: f"\\{character}" for character in "\\`*_[]#"} | {c: f"&#{ord(c)};" for c in "&<>|~$="}
_BLOCKS = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+])")


def answer_markdown(
    text: str, citations: Sequence[Citation], caption: str, nearest: Sequence[NearestSentence] = ()
) -> str:
    """An answer, its citations bold and with footnotes that say where they stand; then the caption.

    Of a refusal the ``nearest`` sentences stand in their place.
    """
    notes = {citation: number for number, citation in enumerate(citations, start=1)}
    segments = cited_segments(text, citations)
    said = "".join(_piece(piece, notes[citation] if citation else None) for piece, citation in segments)
    footnotes = [
        f"[^{number}]: {CITED} [{each.passage}] {_plain(citation_place(each))}" for each, number in notes.items()
    ]
    where = _nearest_list(nearest) if nearest else footnotes or [f"*{NOT_CITED}*"]
    return "\n\n".join([_broken(said), *where, f"*{_plain(caption)}*"]) + "\n"


def _nearest_list(nearest: Sequence[NearestSentence]) -> list[str]:
    found = [
        f"- \\[{each.passage}\\] {_plain(sentence_place(each))}: “{_plain(' '.join(each.text.split()))}”"
        for each in nearest
    ]
    return [f"*{NEAREST}*", "\n".join(found)]


def _piece(text: str, note: int | None) -> str:
    if note is None:
        return _plain(text)
    lines = [f"**{_plain(line.strip())}**" for line in text.splitlines() if line.strip()]
    return "\n".join(lines) + f"[^{note}]"


def _plain(text: str) -> str:
    """The text with nothing in it that is markup within a line, or that cannot be seen."""
    return "".join(_ESCAPED.get(character, character) for character in visible(text))


def _broken(text: str) -> str:
    """Its lines as lines: none begins a list, a heading or a block of code."""
    lines = (re.sub(r"^[ \t]+", lambda indent: "\u00a0" * len(indent[0]), line) for line in text.splitlines())
    return "  \n".join(_BLOCKS.sub(_unblocked, line) for line in lines)


def _unblocked(start: re.Match[str]) -> str:
    return f"\\{start[3]}" if start[3] else f"{start[1]}\\{start[2]}"
