"""The sentence of each passage that fits a question best, by the words they share. Knows no model.

For an answer that is a refusal: whoever asked still gets what was found, and sees at a glance whether it helps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from antiphon.retrieval import Passage
from antiphon.retrieval.blocks import Kind, blocks
from antiphon.retrieval.sentences import Span, lines, sentences

_WORD = re.compile(r"\w+")
_FEWEST_LETTERS = 3
_STEM = 5  # letters that two forms of a word have in common


@dataclass(frozen=True, slots=True)
class NearestSentence:
    """A sentence of passage ``passage``, counted from 1, at characters ``start`` to ``end`` of its source."""

    passage: int
    source: str
    start: int
    end: int
    text: str


def nearest_sentences(question: str, passages: Sequence[Passage]) -> tuple[NearestSentence, ...]:
    """For each passage the sentence, line of code or row that shares most with the question; rare words weigh more.

    Where none shares a word it is the first one. A passage without a sentence has none.
    """
    spans = [_spans(passage.text) for passage in passages]
    words = [[_words(passage.text[slice(*span)]) for span in own] for passage, own in zip(passages, spans, strict=True)]
    counts = Counter(word for own in words for line in own for word in line)
    total = sum(map(len, words))
    weights = {word: log(1 + total / counts[word]) for word in _words(question) if counts[word]}
    found = []
    for number, (passage, own, said) in enumerate(zip(passages, spans, words, strict=True), start=1):
        if own:
            best = max(range(len(own)), key=lambda at: (sum(weights.get(word, 0.0) for word in said[at]), -at))
            start, end = own[best]
            text = passage.text[start:end]
            found.append(NearestSentence(number, passage.source, passage.start + start, passage.start + end, text))
    return tuple(found)


def _spans(text: str) -> list[Span]:
    """Sentences of prose; lines of code and of tables."""
    return [
        span
        for block in blocks(text)
        for span in (sentences if block.kind is Kind.TEXT else lines)(text, block.start, block.end)
        if _WORD.search(text, *span)
    ]


def _words(text: str) -> set[str]:
    return {word[:_STEM] for word in _WORD.findall(text.lower()) if len(word) >= _FEWEST_LETTERS}
