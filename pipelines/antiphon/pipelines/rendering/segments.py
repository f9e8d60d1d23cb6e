"""Parts that all output formats share: texts split at citations, decoding steps, and the wording of locations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.pipelines.rendering.plain_quotes import without_markup

if TYPE_CHECKING:
    from antiphon.accel import Summary, Usage
    from antiphon.pipelines.citations import Citation, NearestSentence
    from antiphon.retrieval import Passage

NOT_CITED = "No six words of the answer are quoted verbatim from a passage."
CITED = "Quoted verbatim from"
NAMED = "Named by the model"
UNSUPPORTED = "shares no word with the sentence that names it"
PASSAGES = "Passages in the prompt"
NEAREST = "Closest sentences in the documents"
OUTDATED = {"changed": "changed", "deleted": "was deleted"}

_LIST_MARKER = re.compile(r"^(?:[-*+•]|\d{1,3}[.)])\s+(?=\S)")
_LINES = re.compile(r"lines \d+(-\d+)?")
_SHORT_PLACES = (
    (re.compile(r"\bpage (\d+-\d+)"), r"pp. \1"),
    (re.compile(r"\bpage (?=\d)"), "p. "),
    (re.compile(r"\blines (?=\d+(?![\d-]))"), "line "),
)


@dataclass(frozen=True, slots=True)
class DecodingStep:
    """The text that one forward pass added.

    Attributes:
        step: the number of the forward pass; 1 is the prefill.
        tokens: the number of tokens, including tokens without text.
        drafted: the text of the accepted draft tokens.
        own: the text of the model's own token after the accepted draft tokens; empty if the text
            ended before this token.
    """

    step: int
    tokens: int
    drafted: str
    own: str


def cited_segments(text: str, citations: Iterable[Citation]) -> Iterator[tuple[str, Citation | None]]:
    """Split an answer at its citations.

    Returns:
        Segments of the text, each with its citation, or None.
    """
    return _split(text, ((each.start, each.end, each) for each in citations))


def displayed_segments(text: str, citations: Iterable[Citation]) -> Iterator[tuple[str, Citation | None]]:
    """Split an answer at its citations for display: quotes have no markup.

    If the number of the passage stands next to a quote, the number is left out, because every
    format shows it after the quote.
    """
    segments = [*cited_segments(text, citations), ("", None)]
    quoted = 0  # the passage of the quote that has just ended
    for (segment, citation), (_, following) in pairwise(segments):
        if citation is not None and citation.kind == "marker":
            if citation.passage != quoted or not (segment[0] in "[【" and segment[-1] in "]】"):
                yield segment, citation
        elif citation is not None:
            quoted = citation.passage
            yield without_markup(segment), citation
        elif shown := segment.removesuffix(f"[{following.passage}] ") if following is not None else segment:
            quoted = 0 if any(map(str.isalnum, shown)) else quoted
            yield shown, None


def displayed_quote(text: str) -> str:
    """Return a quoted text on one line, without markup, the marker of a list and the outer bars of a table."""
    line = " ".join(without_markup(text).split())
    return _LIST_MARKER.sub("", line.strip("| ") if line.startswith("| ") else line)


def quoted_segments(
    passage: Passage, number: int, citations: Sequence[Citation]
) -> Iterator[tuple[str, Citation | None]]:
    """Split a passage at the spans that an answer quotes.

    Args:
        number: the passage's number, from 1.

    Returns:
        Segments of the passage, each with the citation that quotes it, or None.
    """
    spans = sorted(
        (each.source_start - passage.start, each.source_end - passage.start, index)
        for index, each in enumerate(citations)
        if each.passage == number and not each.unsupported
    )
    return _split(passage.text, ((start, end, citations[index]) for start, end, index in spans))


def short_source(source: str, root: Path | None = None) -> str:
    """Return a source as a path relative to ``root``, or unchanged if the source is outside ``root``.

    Args:
        root: a folder; by default the working directory.
    """
    path, root = Path(source), root or Path.cwd()
    return str(path.relative_to(root)) if path.is_relative_to(root) else source


def file_name(source: str) -> str:
    """Return the last part of a document's path, the only part that clients of a server see."""
    return source.replace("\\", "/").rpartition("/")[2] or source


def listed_citations(
    citations: Sequence[Citation], nearest: Sequence[NearestSentence], root: Path | None = None
) -> Iterator[tuple[str, list[tuple[int, str, str, bool]]]]:
    """Yield the lists below an answer: the heading and the lines of each list.

    A line consists of passage number, location, text and `unsupported`.

    Markers that cite the same line of a passage are listed once.

    Args:
        nearest: the closest sentences; if there are any, they are listed instead of citations.
        root: folder that sources are shown relative to.
    """
    if nearest:
        yield NEAREST, [(each.passage, sentence_location(each, root), each.text, False) for each in nearest]
        return
    quoted = [each for each in citations if each.kind == "verbatim"]
    named = {(each.passage, each.source_start, each.unsupported): each for each in citations if each.kind == "marker"}
    for heading, found in ((CITED, quoted), (NAMED, [*named.values()])):
        if found:
            yield heading, [(one.passage, citation_location(one, root), one.text, one.unsupported) for one in found]


def outdated_note(cited: Iterable[Citation | NearestSentence], root: Path | None = None) -> str:
    """Return a line that names the cited files that were changed or deleted after they were indexed; else no text."""
    names: dict[str, list[str]] = {"changed": [], "deleted": []}
    for each in cited:
        if each.outdated and (name := short_source(each.source, root)) not in names[each.outdated]:
            names[each.outdated].append(name)
    parts = [f"{', '.join(found)} {OUTDATED[change]}" for change, found in names.items() if found]
    return f"{' and '.join(parts)} since the index was made; bring it up to date: antiphon index" if parts else ""


def sentence_location(sentence: NearestSentence, root: Path | None = None) -> str:
    """Return the source and the place of a sentence."""
    span = f"characters {sentence.start}-{sentence.end}"
    return f"{short_source(sentence.source, root)}, {place_of(sentence.location, sentence.section) or span}"


def citation_location(citation: Citation, root: Path | None = None) -> str:
    """Return the source and the location of the quoted text: page, section or line; if unknown, its character offsets.

    Further documents with the same passage are listed after the location.
    """
    others = ", ".join(short_source(source, root) for source in citation.also_in)
    also = f" (also in {others})" if others else ""
    span = f"characters {citation.source_start}-{citation.source_end}"
    return f"{short_source(citation.source, root)}, {place_of(citation.location, citation.section) or span}{also}"


def place_of(location: str, section: str) -> str:
    """Return the page, section or lines of a quote in its file; empty if none of them is known.

    Args:
        location: the place in the file, such as ``page 3`` or ``lines 5-6``.
        section: the heading above the quote, which is shown in place of lines.
    """
    if section and (not location or _LINES.fullmatch(location)):
        return " ".join(without_markup(section).split())
    for pattern, short in _SHORT_PLACES:
        location = pattern.sub(short, location)
    return location


def cost_line(usage: Usage, steps: Summary, finish_reason: str) -> str:
    """Return one line with the generated tokens of an answer and the speed of decoding, without the prefill.

    Args:
        finish_reason: If it is "length", the line says that the answer is truncated.
    """
    speed = f", {steps.tokens_per_second:.0f} tokens/s" if steps.decoded_tokens else ""
    gain = f", {steps.speedup:.1f}x as fast as without drafts" if steps.speedup else ""
    truncated = "; cut off by max_new_tokens" if finish_reason == "length" else ""
    weights = f"; generated with {steps.weights} weights, which change the output" if steps.weights else ""
    return f"{usage.completion_tokens} tokens{speed}{gain}{truncated}{weights}"


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _split(text: str, spans: Iterable[tuple[int, int, Citation]]) -> Iterator[tuple[str, Citation | None]]:
    """Yield the spans and the text between them, in order. If two spans overlap, the earlier span gets the overlap."""
    done = 0
    for start, end, citation in spans:
        if end <= done:
            continue
        if start > done:
            yield text[done:start], None
        yield text[max(start, done) : end], citation
        done = end
    if done < len(text):
        yield text[done:], None
