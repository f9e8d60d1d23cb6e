"""Render answers as HTML for notebooks: self-contained, without JavaScript, all text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from antiphon.pipelines.rendering.sanitize import sanitize
from antiphon.pipelines.rendering.segments import (
    CITED,
    NAMED,
    NOT_CITED,
    PASSAGES,
    UNSUPPORTED,
    DecodingStep,
    citation_location,
    displayed_quote,
    displayed_segments,
    listed_citations,
    outdated_note,
    quoted_segments,
    short_source,
)

if TYPE_CHECKING:
    from antiphon.pipelines.citations import Citation, NearestSentence
    from antiphon.retrieval import Passage

COLORS = ("86,180,233", "230,159,0", "0,158,115", "204,121,167", "240,228,66", "0,114,178", "213,94,0")
"""The Okabe-Ito palette, safe for colour-blind readers; every colour is accompanied by a number."""

# Translucent tints and the inherited text colour suit light and dark themes.
_STYLE = (
    ".antiphon{line-height:1.6;max-width:46em}"
    ".antiphon .text{white-space:pre-wrap;margin:.3em 0;overflow-wrap:anywhere}"
    ".antiphon mark,.antiphon .step{color:inherit;border-radius:.2em;padding:.08em .15em;"
    "box-decoration-break:clone;-webkit-box-decoration-break:clone}"
    ".antiphon sup{font-size:.7em;line-height:0;font-weight:600}"
    ".antiphon small,.antiphon summary{opacity:.75}"
    ".antiphon details .text{margin-bottom:1em}"
    ".antiphon ol{list-style:none;margin:.2em 0;padding:0}"
    ".antiphon .own{font-weight:700;border-bottom:.15em solid rgb(230,159,0)}"
    ".antiphon .odd{background:rgba(86,180,233,.38)}.antiphon .even{background:rgba(0,158,115,.30)}"
    ".antiphon .step{padding:.08em 0;border-left:.15em solid rgba(128,128,128,.9);border-radius:0;margin-left:.1em}"
)


def answer_html(
    question: str,
    text: str,
    citations: Sequence[Citation],
    passages: Sequence[Passage],
    caption: str,
    nearest: Sequence[NearestSentence] = (),
) -> str:
    """Return an answer with lists of citations and passages, and a caption; each passage has its own colour.

    Hovering over a citation shows its location, which is also in the list below the answer.

    Args:
        nearest: the closest sentences, shown in place of citations if the answer is a refusal.
    """
    content = _text(displayed_segments(text, citations))
    lists = (
        f"<small>{heading}</small><ol>{''.join(_list_item(*each) for each in found)}</ol>"
        for heading, found in listed_citations(citations, nearest)
    )
    locations = "".join(lists) or f"<small>{NOT_CITED}</small>"
    if note := outdated_note([*citations, *nearest]):
        locations += f"<small>{_escaped(note)}</small><br>"
    quoted = "".join(_passages(passages, citations))
    shown = f"<details><summary>{PASSAGES}: {len(passages)}</summary>{quoted}</details>" if passages else ""
    return _page(f"<b>{_escaped(question)}</b>{content}{locations}{shown}<small>{_escaped(caption)}</small>")


def trace_html(steps: Iterable[DecodingStep], caption: str) -> str:
    """Return the text step by step, with accepted draft tokens tinted and the model's own tokens bold."""
    content = "".join(_step(step) for step in steps)
    legend = (
        '<small>Each bar starts a forward pass. <span class="odd">Tinted</span>: accepted draft tokens. '
        '<span class="own">Bold, underlined</span>: the model\'s own next token.</small>'
    )
    return _page(f'<div class="text">{content}</div>{legend} <small>{_escaped(caption)}</small>')


def _escaped(text: str) -> str:
    """Return the text without control characters and with markup escaped."""
    return html.escape(sanitize(text))


def _page(body: str) -> str:
    return f'<div class="antiphon"><style>{_STYLE}</style>{body}</div>'


def _text(segments: Iterable[tuple[str, Citation | None]]) -> str:
    return f'<div class="text">{"".join(_segment(*segment) for segment in segments)}</div>'


def _segment(text: str, citation: Citation | None) -> str:
    if citation is None:
        return _escaped(text)
    number = citation.passage
    is_quote = citation.kind == "verbatim"
    note = f", {UNSUPPORTED}" if citation.unsupported else ""
    title = _escaped(f"{CITED if is_quote else NAMED} [{number}] {citation_location(citation)}{note}")
    shown = f"{_escaped(text)}<sup>[{number}]</sup>" if is_quote else _escaped(text)
    return f'<mark style="{_tint(number)}" title="{title}">{shown}</mark>'


def _list_item(number: int, location: str, text: str, is_unsupported: bool) -> str:
    note = f" <small>({UNSUPPORTED})</small>" if is_unsupported else ""
    quotation = _escaped(displayed_quote(text))
    mark = f'<mark style="{_tint(number)}">[{number}]</mark>'
    return f"<li>{mark} {_escaped(location)}: “{quotation}”{note}</li>"


def _passages(passages: Sequence[Passage], citations: Sequence[Citation]) -> Iterator[str]:
    for number, passage in enumerate(passages, start=1):
        heading = _escaped(f"[{number}] {short_source(passage.source)}, characters {passage.start}-{passage.end}")
        yield f"<small>{heading}</small>{_text(quoted_segments(passage, number, citations))}"


def _tint(number: int) -> str:
    color = COLORS[(number - 1) % len(COLORS)]
    return f"background:rgba({color},.32);border-bottom:.12em solid rgb({color})"


def _step(step: DecodingStep) -> str:
    shade = "odd" if step.step % 2 else "even"
    drafted = f'<span class="{shade}">{_escaped(step.drafted)}</span>' if step.drafted else ""
    own = f'<span class="own">{_escaped(step.own)}</span>' if step.own else ""
    return f'<span class="step" title="step {step.step}: {step.tokens} tokens">{drafted}{own}</span>'
