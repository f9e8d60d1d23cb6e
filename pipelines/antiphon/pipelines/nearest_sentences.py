"""The sentence of each passage that matches a question best by shared words; shown if an answer is a refusal.

So a user who gets a refusal still sees the best of what was retrieved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from antiphon.retrieval import Passage
from antiphon.retrieval.block import BlockKind, Span
from antiphon.retrieval.formats import markup_of
from antiphon.retrieval.passage import TRAIL
from antiphon.retrieval.segmentation import blocks, lines, sentences

_WORD = re.compile(r"\w+")
_MIN_LETTERS = 3
_STEM_LETTERS = 5  # two words with this common beginning count as forms of one word


@dataclass(frozen=True, slots=True)
class NearestSentence:
    """A sentence of a passage.

    Attributes:
        passage: the number of the passage, from 1.
        source: the document.
        start: the first character in the document.
        end: the end in the document.
        text: the sentence.
        location: the place in the file, such as ``page 3``; empty if the format has no places.
        section: the innermost heading above the sentence; may be empty.
    """

    passage: int
    source: str
    start: int
    end: int
    text: str
    location: str = ""
    section: str = ""


def nearest_sentences(question: str, passages: Sequence[Passage]) -> tuple[NearestSentence, ...]:
    """Return for each passage the sentence, line of code or table row with the highest weight of shared words.

    Rare words weigh more. If no sentence shares a word, it is the first one; a passage without sentences is left out.

    Args:
        question: the question.
        passages: the passages.
    """
    spans = [_spans(passage) for passage in passages]
    words = [[_words(passage.text[slice(*span)]) for span in own] for passage, own in zip(passages, spans, strict=True)]
    counts = Counter(word for own in words for sentence in own for word in sentence)
    total = sum(map(len, words))
    weights = {word: log(1 + total / counts[word]) for word in _words(question) if counts[word]}
    found = []
    for number, (passage, own, own_words) in enumerate(zip(passages, spans, words, strict=True), start=1):
        if own:
            scores = [sum(weights.get(word, 0.0) for word in sentence) for sentence in own_words]
            best = max(range(len(own)), key=lambda index: (scores[index], -index))
            start, end = own[best]
            text, start, end = passage.text[start:end], passage.start + start, passage.start + end
            section = str(passage.metadata.get("title") or "").rpartition(TRAIL)[2]
            location = passage.location_of(start, end)
            found.append(NearestSentence(number, passage.source, start, end, text, location, section))
    return tuple(found)


def _spans(passage: Passage) -> list[Span]:
    """Return the spans of sentences of prose, and of lines of code and of tables."""
    text = passage.text
    return [
        span
        for block in blocks(text, markup=markup_of(passage.source), code=passage.code_spans)
        if block.kind is not BlockKind.MARKUP
        for span in (sentences if block.kind is BlockKind.TEXT else lines)(text, block.start, block.end)
        if _WORD.search(text, *span)
    ]


def _words(text: str) -> set[str]:
    return {word[:_STEM_LETTERS] for word in _WORD.findall(text.lower()) if len(word) >= _MIN_LETTERS}
