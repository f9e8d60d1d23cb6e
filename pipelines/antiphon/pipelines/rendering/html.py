"""Answers as HTML for notebooks: self-contained, and every text in it escaped. Knows no model and no JavaScript."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from antiphon.pipelines.rendering.parts import Part
from antiphon.pipelines.rendering.segments import (
    CITED,
    NEAREST,
    NOT_CITED,
    READ,
    citation_place,
    cited_segments,
    quoted_segments,
    sentence_place,
    shown_source,
)
from antiphon.pipelines.rendering.visible import visible

if TYPE_CHECKING:
    from antiphon.pipelines.citations import Citation
    from antiphon.pipelines.nearest import NearestSentence
    from antiphon.retrieval import Passage

COLORS = ("86,180,233", "230,159,0", "0,158,115", "204,121,167", "240,228,66", "0,114,178", "213,94,0")
"""Okabe and Ito's palette, which people of any colour vision can tell apart; a number stands beside every colour."""

# Tints let the page shine through and texts keep its colour, so that the same page is right in light and dark themes.
_STYLE = (
    ".antiphon{line-height:1.6;max-width:46em}"
    ".antiphon .text{white-space:pre-wrap;margin:.3em 0;overflow-wrap:anywhere}"
    ".antiphon mark,.antiphon .part{color:inherit;border-radius:.2em;padding:.08em .15em;"
    "box-decoration-break:clone;-webkit-box-decoration-break:clone}"
    ".antiphon sup{font-size:.7em;line-height:0;font-weight:600}"
    ".antiphon small,.antiphon summary{opacity:.75}"
    ".antiphon details .text{margin-bottom:1em}"
    ".antiphon ol{list-style:none;margin:.2em 0;padding:0}"
    ".antiphon .own{font-weight:700;border-bottom:.15em solid rgb(230,159,0)}"
    ".antiphon .odd{background:rgba(86,180,233,.38)}.antiphon .even{background:rgba(0,158,115,.30)}"
    ".antiphon .part{padding:.08em 0;border-left:.15em solid rgba(128,128,128,.9);border-radius:0;margin-left:.1em}"
)


def answer_html(
    question: str,
    text: str,
    citations: Sequence[Citation],
    passages: Sequence[Passage],
    caption: str,
    nearest: Sequence[NearestSentence] = (),
) -> str:
    """An answer with its citations in the colour of their passage, where they stand, the passages, and a caption.

    Hovering over a citation shows where it stands, and so does the list below the answer. An answer that is a refusal
    has the ``nearest`` sentences in its place.
    """
    said = _text(cited_segments(text, citations))
    notes = "".join(_note(each.passage, citation_place(each), each.text) for each in citations)
    where = f"<small>{CITED}</small><ol>{notes}</ol>" if notes else f"<small>{NOT_CITED}</small>"
    if nearest:
        notes = "".join(_note(each.passage, sentence_place(each), each.text) for each in nearest)
        where = f"<small>{NEAREST}</small><ol>{notes}</ol>"
    shown = "".join(_passages(passages, citations))
    read = f"<details><summary>{READ}: {len(passages)}</summary>{shown}</details>" if passages else ""
    return _page(f"<b>{_escaped(question)}</b>{said}{where}{read}<small>{_escaped(caption)}</small>")


def drafting_html(parts: Iterable[Part], caption: str) -> str:
    """The text as it was decoded: a part for every forward, what a draft had guessed tinted, the model's own bold."""
    drawn = "".join(_part(part) for part in parts)
    legend = (
        '<small>A bar begins each forward. <span class="odd">Tinted</span>: guessed by a draft, and what the model '
        'would have said. <span class="own">Bold, underlined</span>: the model\'s own next token.</small>'
    )
    return _page(f'<div class="text">{drawn}</div>{legend} <small>{_escaped(caption)}</small>')


def _escaped(text: str) -> str:
    """The text with nothing in it that is markup, or that cannot be seen."""
    return html.escape(visible(text))


def _page(body: str) -> str:
    return f'<div class="antiphon"><style>{_STYLE}</style>{body}</div>'


def _text(pieces: Iterable[tuple[str, Citation | None]]) -> str:
    return f'<div class="text">{"".join(_piece(*piece) for piece in pieces)}</div>'


def _piece(text: str, citation: Citation | None) -> str:
    if citation is None:
        return _escaped(text)
    number = citation.passage
    where = _escaped(f"{CITED} [{number}] {citation_place(citation)}")
    return f'<mark style="{_tint(number)}" title="{where}">{_escaped(text)}<sup>[{number}]</sup></mark>'


def _note(number: int, place: str, text: str) -> str:
    quotation = _escaped(" ".join(text.split()))
    mark = f'<mark style="{_tint(number)}">[{number}]</mark>'
    return f"<li>{mark} {_escaped(place)}: “{quotation}”</li>"


def _passages(passages: Sequence[Passage], citations: Sequence[Citation]) -> Iterator[str]:
    for number, passage in enumerate(passages, start=1):
        where = _escaped(f"[{number}] {shown_source(passage.source)}, characters {passage.start}-{passage.end}")
        yield f"<small>{where}</small>{_text(quoted_segments(passage, number, citations))}"


def _tint(number: int) -> str:
    color = COLORS[(number - 1) % len(COLORS)]
    return f"background:rgba({color},.32);border-bottom:.12em solid rgb({color})"


def _part(part: Part) -> str:
    shade = "odd" if part.step % 2 else "even"
    drafted = f'<span class="{shade}">{_escaped(part.drafted)}</span>' if part.drafted else ""
    own = f'<span class="own">{_escaped(part.own)}</span>' if part.own else ""
    return f'<span class="part" title="step {part.step}: {part.tokens} tokens">{drafted}{own}</span>'
