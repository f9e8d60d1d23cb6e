"""Finds, in each passage, the line that shares most words with the question. A refusal shows these lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.pipelines.question import content_stems
from antiphon.pipelines.quotes import headings_of, quotable_lines
from antiphon.retrieval import Passage
from antiphon.retrieval.source_file import FileChange, file_change


@dataclass(frozen=True, slots=True)
class NearestSentence:
    """A sentence, line of code or table row of a passage.

    Attributes:
        passage: the number of the passage, from 1.
        start: the first character in the document.
        location: the place in the file, such as ``page 3``; empty if the format has no places.
        section: the innermost heading above the sentence; may be empty.
        outdated: "changed" or "deleted" if the file was changed or deleted after it was indexed;
            else empty.
    """

    passage: int
    source: str
    start: int
    end: int
    text: str
    location: str = ""
    section: str = ""
    outdated: FileChange = ""


def nearest_sentences(question: str, passages: Sequence[Passage]) -> tuple[NearestSentence, ...]:
    """Return, for each passage, the line that shares most words with a question; in a tie, the first such line."""
    asked, found = content_stems(question), []
    for passage, quotes in zip(passages, quotable_lines(passages), strict=True):
        if quotes:
            best = max(quotes, key=lambda quote: len(asked & content_stems(quote.sentence)))
            span = passage.start + best.start, passage.start + best.end
            text = best.sentence if best.is_row else passage.text[best.start : best.end]
            section = "".join(headings_of(passage)[-1:])
            place = passage.location_of(*span)
            found.append(
                NearestSentence(best.number, passage.source, *span, text, place, section, file_change(passage.metadata))
            )
    return tuple(found)
