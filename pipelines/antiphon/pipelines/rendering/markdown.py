"""Answers as Markdown, with footnotes: every text in it escaped. Knows no model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from antiphon.pipelines.rendering.segments import CITED, NEAREST, NOT_CITED, cited, cost, place, place_of

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer

# Backslashes where every Markdown takes them; entities where some do not, or read HTML, tables and formulas first.
_ESCAPED = {character: f"\\{character}" for character in "\\`*_[]#"} | {c: f"&#{ord(c)};" for c in "&<>|~$="}
_BLOCKS = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+])")


def answer_markdown(answer: Answer) -> str:
    """The answer, its citations bold and with footnotes that say where they stand; then one line of what it cost."""
    notes = {citation: number for number, citation in enumerate(answer.citations, start=1)}
    text = "".join(_piece(piece, notes[citation] if citation else None) for piece, citation in cited(answer))
    footnotes = [f"[^{number}]: {CITED} [{each.passage}] {_plain(place(each))}" for each, number in notes.items()]
    where = _nearest(answer) if answer.is_declined else footnotes or [f"*{NOT_CITED}*"]
    return "\n\n".join([_broken(text), *where, f"*{_plain(cost(answer))}*"]) + "\n"


def _nearest(answer: Answer) -> list[str]:
    """What was found, with the sentence of each passage that fits the question best."""
    found = [
        f"- \\[{each.passage}\\] {_plain(place_of(each))}: “{_plain(' '.join(each.text.split()))}”"
        for each in answer.nearest
    ]
    return [f"*{NEAREST}*", "\n".join(found)]


def _piece(text: str, note: int | None) -> str:
    if note is None:
        return _plain(text)
    lines = [f"**{_plain(line.strip())}**" for line in text.splitlines() if line.strip()]
    return "\n".join(lines) + f"[^{note}]"


def _plain(text: str) -> str:
    """The text with nothing in it that is markup within a line."""
    return "".join(_ESCAPED.get(character, character) for character in text)


def _broken(text: str) -> str:
    """Its lines as lines: none begins a list, a heading or a block of code."""
    lines = (re.sub(r"^[ \t]+", lambda indent: "\u00a0" * len(indent[0]), line) for line in text.splitlines())
    return "  \n".join(_BLOCKS.sub(_unblocked, line) for line in lines)


def _unblocked(start: re.Match[str]) -> str:
    return f"\\{start[3]}" if start[3] else f"{start[1]}\\{start[2]}"
