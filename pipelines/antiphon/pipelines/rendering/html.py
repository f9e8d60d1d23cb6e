"""Answers as HTML for notebooks: self-contained, and every text in it escaped. Knows no model and no JavaScript."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

from antiphon.pipelines.rendering.segments import (
    CITED,
    NEAREST,
    NOT_CITED,
    READ,
    cited,
    cost,
    place,
    place_of,
    quoted,
    shown_source,
)

if TYPE_CHECKING:
    from antiphon.pipelines.answer import Answer
    from antiphon.pipelines.citations import Citation
    from antiphon.pipelines.drafting import Drafting, Part
    from antiphon.pipelines.nearest import Nearest

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


def answer_html(answer: Answer) -> str:
    """The answer with its citations in the colour of their passage, where they stand, the passages, and the cost.

    Hovering over a citation shows where it stands, and so does the list below the answer.
    """
    text = _text(cited(answer))
    notes = "".join(_note(citation) for citation in answer.citations)
    where = f"<small>{CITED}</small><ol>{notes}</ol>" if notes else f"<small>{NOT_CITED}</small>"
    if answer.is_declined:
        where = f"<small>{NEAREST}</small><ol>{''.join(map(_nearest, answer.nearest))}</ol>"
    passages = "".join(_passages(answer))
    read = f"<details><summary>{READ}: {len(answer.passages)}</summary>{passages}</details>" if passages else ""
    return _page(f"<b>{escape(answer.question)}</b>{text}{where}{read}<small>{escape(cost(answer))}</small>")


def drafting_html(drafting: Drafting) -> str:
    """The text as it was decoded: a part for every forward, what a draft had guessed tinted, the model's own bold."""
    parts = "".join(_part(part) for part in drafting.parts)
    legend = (
        '<small>A bar begins each forward. <span class="odd">Tinted</span>: guessed by a draft, and what the model '
        'would have said. <span class="own">Bold, underlined</span>: the model\'s own next token.</small>'
    )
    return _page(f'<div class="text">{parts}</div>{legend} <small>{escape(drafting.caption)}</small>')


def _page(body: str) -> str:
    return f'<div class="antiphon"><style>{_STYLE}</style>{body}</div>'


def _text(pieces: Iterable[tuple[str, Citation | None]]) -> str:
    return f'<div class="text">{"".join(_piece(*piece) for piece in pieces)}</div>'


def _piece(text: str, citation: Citation | None) -> str:
    if citation is None:
        return escape(text)
    number = citation.passage
    where = escape(f"{CITED} [{number}] {place(citation)}")
    return f'<mark style="{_tint(number)}" title="{where}">{escape(text)}<sup>[{number}]</sup></mark>'


def _note(citation: Citation) -> str:
    quotation = escape(" ".join(citation.text.split()))
    number = f'<mark style="{_tint(citation.passage)}">[{citation.passage}]</mark>'
    return f"<li>{number} {escape(place(citation))}: “{quotation}”</li>"


def _nearest(sentence: Nearest) -> str:
    quotation = escape(" ".join(sentence.text.split()))
    number = f'<mark style="{_tint(sentence.passage)}">[{sentence.passage}]</mark>'
    return f"<li>{number} {escape(place_of(sentence))}: “{quotation}”</li>"


def _passages(answer: Answer) -> Iterator[str]:
    for number, passage in enumerate(answer.passages, start=1):
        where = escape(f"[{number}] {shown_source(passage.source)}, characters {passage.start}-{passage.end}")
        yield f"<small>{where}</small>{_text(quoted(passage, number, answer))}"


def _tint(number: int) -> str:
    color = COLORS[(number - 1) % len(COLORS)]
    return f"background:rgba({color},.32);border-bottom:.12em solid rgb({color})"


def _part(part: Part) -> str:
    shade = "odd" if part.step % 2 else "even"
    drafted = f'<span class="{shade}">{escape(part.drafted)}</span>' if part.drafted else ""
    own = f'<span class="own">{escape(part.own)}</span>' if part.own else ""
    return f'<span class="part" title="step {part.step}: {part.tokens} tokens">{drafted}{own}</span>'
