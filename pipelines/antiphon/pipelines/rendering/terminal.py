"""Answers as rich text for the terminal. Colours are the terminal's own, and a number or a bar stands beside each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from antiphon.pipelines.rendering.parts import Part
from antiphon.pipelines.rendering.segments import CITED, NOT_CITED, citation_place, cited_segments
from antiphon.pipelines.rendering.visible import visible

if TYPE_CHECKING:
    from antiphon.pipelines.citations import Citation

COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")


def answer_text(text: str, citations: Sequence[Citation], caption: str) -> RenderableType:
    """An answer with its citations in the colour and with the number of their passage, where they stand, a caption."""
    said = Text()
    for piece, citation in cited_segments(text, citations):
        said.append(visible(piece), style=f"{_color(citation)} underline" if citation else "")
        if citation:
            said.append(f"[{citation.passage}]", style=f"bold {_color(citation)}")
    return Group(said, *citation_lines(citations), Text(visible(caption), style="dim"))


def citation_lines(citations: Sequence[Citation], root: Path | None = None) -> list[Text]:
    """One line for each citation: passage number, source, characters, words. Sources under ``root`` are shortened."""
    if not citations:
        return [Text(NOT_CITED, style="dim")]
    return [Text(CITED, style="dim"), *(_line(citation, root) for citation in citations)]


def drafting_text(parts: Iterable[Part], caption: str) -> RenderableType:
    """The text as it was decoded: a bar before each forward, what a draft guessed coloured, the model's own bold."""
    text = Text()
    for part in parts:
        _append(text, part)
    legend = Text("A bar begins each forward. ", style="dim")
    legend.append("Coloured", style="cyan not dim")
    legend.append(": guessed by a draft, and what the model would have said. ")
    legend.append("Bold, underlined", style="bold underline not dim")
    legend.append(": the model's own next token.")
    return Group(text, legend, Text(caption, style="dim"))


def _append(text: Text, part: Part) -> None:
    text.append("│", style="dim")
    text.append(visible(part.drafted), style="cyan" if part.step % 2 else "green")
    text.append(visible(part.own), style="bold underline")


def _line(citation: Citation, root: Path | None) -> Text:
    line = Text()
    line.append(f"  [{citation.passage}] ", style=f"bold {_color(citation)}")
    line.append(visible(citation_place(citation, root)), style=_color(citation))
    line.append(f": “{visible(' '.join(citation.text.split()))}”")
    return line


def _color(citation: Citation) -> str:
    return COLORS[(citation.passage - 1) % len(COLORS)]
