"""Answers as rich text for the terminal. Colours are the terminal's own, and a number or a bar stands beside each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from antiphon.pipelines.rendering.segments import CITED, CONTROLS, NEAREST, NOT_CITED, cited, cost, place, place_of

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer
    from antiphon.pipelines.citations import Citation
    from antiphon.pipelines.drafting import Drafting, Part
    from antiphon.pipelines.nearest import Nearest

COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")


def answer_text(answer: Answer) -> RenderableType:
    """The answer with its citations in the colour and with the number of their passage, where they stand, the cost."""
    text = Text()
    for piece, citation in cited(answer):
        text.append(piece.translate(CONTROLS), style=f"{_color(citation)} underline" if citation else "")
        if citation:
            text.append(f"[{citation.passage}]", style=f"bold {_color(citation)}")
    return Group(text, *citation_lines(answer), Text(cost(answer), style="dim"))


def citation_lines(answer: Answer, root: Path | None = None) -> list[Text]:
    """One line for each citation: passage number, source, characters, words. Sources under ``root`` are shortened.

    Of a refusal, one line for each passage: the sentence that fits the question best.
    """
    if answer.is_declined:
        return [Text(NEAREST, style="dim"), *(_nearest(sentence, root) for sentence in answer.nearest)]
    if not answer.citations:
        return [Text(NOT_CITED, style="dim")]
    return [Text(CITED, style="dim"), *(_line(citation, root) for citation in answer.citations)]


def drafting_text(drafting: Drafting) -> RenderableType:
    """The text as it was decoded: a bar before each forward, what a draft guessed coloured, the model's own bold."""
    text = Text()
    for part in drafting.parts:
        _append(text, part)
    legend = Text("A bar begins each forward. ", style="dim")
    legend.append("Coloured", style="cyan not dim")
    legend.append(": guessed by a draft, and what the model would have said. ")
    legend.append("Bold, underlined", style="bold underline not dim")
    legend.append(": the model's own next token.")
    return Group(text, legend, Text(drafting.caption, style="dim"))


def _append(text: Text, part: Part) -> None:
    text.append("│", style="dim")
    text.append(part.drafted.translate(CONTROLS), style="cyan" if part.step % 2 else "green")
    text.append(part.own.translate(CONTROLS), style="bold underline")


def _line(citation: Citation, root: Path | None) -> Text:
    line = Text()
    line.append(f"  [{citation.passage}] ", style=f"bold {_color(citation)}")
    line.append(place(citation, root).translate(CONTROLS), style=_color(citation))
    line.append(f": “{' '.join(citation.text.split()).translate(CONTROLS)}”")
    return line


def _nearest(sentence: Nearest, root: Path | None) -> Text:
    line = Text()
    line.append(f"  [{sentence.passage}] ", style=f"bold {_color(sentence)}")
    line.append(place_of(sentence, root).translate(CONTROLS), style=_color(sentence))
    line.append(f": “{' '.join(sentence.text.split()).translate(CONTROLS)}”")
    return line


def _color(citation: Citation | Nearest) -> str:
    return COLORS[(citation.passage - 1) % len(COLORS)]
