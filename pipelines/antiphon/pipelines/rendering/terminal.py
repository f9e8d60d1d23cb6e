"""Render answers as rich text in the terminal's own colours. Each colour comes with a number or a bar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.pipelines.rendering.segments import (
    NOT_CITED,
    UNSUPPORTED,
    DecodingStep,
    displayed_quote,
    displayed_segments,
    listed_citations,
    outdated_note,
)

if TYPE_CHECKING:
    from antiphon.pipelines.citations import Citation, NearestSentence

COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")


def answer_text(
    text: str, citations: Sequence[Citation], caption: str, nearest: Sequence[NearestSentence] = ()
) -> RenderableType:
    """Return an answer and a caption; each citation has the colour and the number of its passage.

    Args:
        nearest: the closest sentences, listed in place of citations if the answer is a refusal.
    """
    content = Text()
    for segment, citation in displayed_segments(text, citations):
        content.append(sanitize(segment), style=f"{_color(citation.passage)} underline" if citation else "")
        if citation and citation.kind == "verbatim":
            content.append(f"[{citation.passage}]", style=f"bold {_color(citation.passage)}")
    return Group(content, *citation_lines(citations, nearest), Text(sanitize(caption), style="dim"))


def citation_lines(
    citations: Sequence[Citation], nearest: Sequence[NearestSentence] = (), root: Path | None = None
) -> list[Text]:
    """Return one line per citation, grouped by kind: passage number, location and text.

    Args:
        nearest: the closest sentences; if there are any, they are listed instead of citations.
        root: folder that sources are shown relative to.
    """
    note = outdated_note([*citations, *nearest], root)
    notes = [Text(sanitize(note), style="yellow")] if note else []
    lines = []
    for heading, found in listed_citations(citations, nearest, root):
        lines += [Text(heading, style="dim"), *(_line(*each) for each in found)]
    return [*(lines or [Text(NOT_CITED, style="dim")]), *notes]


def trace_text(steps: Iterable[DecodingStep], caption: str) -> RenderableType:
    """Return the text step by step, with accepted draft tokens coloured and the model's own tokens bold."""
    text = Text()
    for step in steps:
        _append(text, step)
    legend = Text("Each bar starts a forward pass. ", style="dim")
    legend.append("Coloured", style="cyan not dim")
    legend.append(": accepted draft tokens. ")
    legend.append("Bold, underlined", style="bold underline not dim")
    legend.append(": the model's own next token.")
    return Group(text, legend, Text(caption, style="dim"))


def _append(text: Text, step: DecodingStep) -> None:
    text.append("│", style="dim")
    text.append(sanitize(step.drafted), style="cyan" if step.step % 2 else "green")
    text.append(sanitize(step.own), style="bold underline")


def _line(number: int, location: str, text: str, is_unsupported: bool) -> Text:
    line = Text()
    line.append(f"  [{number}] ", style=f"bold {_color(number)}")
    line.append(sanitize(location), style=_color(number))
    line.append(f": “{sanitize(displayed_quote(text))}”")
    line.append(f" ({UNSUPPORTED})" if is_unsupported else "", style="dim")
    return line


def _color(number: int) -> str:
    return COLORS[(number - 1) % len(COLORS)]
