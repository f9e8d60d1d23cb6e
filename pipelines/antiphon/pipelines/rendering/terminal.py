"""Answers as rich text for the terminal. Colours are the terminal's own, and a number or a bar stands beside each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from antiphon.pipelines.rendering.parts import Part
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

COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")


def answer_text(
    text: str, citations: Sequence[Citation], caption: str, nearest: Sequence[NearestSentence] = ()
) -> RenderableType:
    """An answer with its citations in the colour and with the number of their passage, where they stand, a caption.

    Of a refusal the ``nearest`` sentences stand in their place.
    """
    said = Text()
    for piece, citation in cited_segments(text, citations):
        said.append(visible(piece), style=f"{_color(citation.passage)} underline" if citation else "")
        if citation:
            said.append(f"[{citation.passage}]", style=f"bold {_color(citation.passage)}")
    return Group(said, *citation_lines(citations, nearest), Text(visible(caption), style="dim"))


def citation_lines(
    citations: Sequence[Citation], nearest: Sequence[NearestSentence] = (), root: Path | None = None
) -> list[Text]:
    """One line for each citation: passage number, source, characters, words. Sources under ``root`` are shortened.

    Of a refusal, one line for each of the ``nearest`` sentences.
    """
    if nearest:
        places = ((each.passage, sentence_place(each, root), each.text) for each in nearest)
        return [Text(NEAREST, style="dim"), *(_line(*each) for each in places)]
    if not citations:
        return [Text(NOT_CITED, style="dim")]
    places = ((each.passage, citation_place(each, root), each.text) for each in citations)
    return [Text(CITED, style="dim"), *(_line(*each) for each in places)]


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


def _line(number: int, place: str, text: str) -> Text:
    line = Text()
    line.append(f"  [{number}] ", style=f"bold {_color(number)}")
    line.append(visible(place), style=_color(number))
    line.append(f": “{visible(' '.join(text.split()))}”")
    return line


def _color(number: int) -> str:
    return COLORS[(number - 1) % len(COLORS)]
