"""Citations: the spans of an answer that are quoted verbatim from a passage, and the passages that the answer names.

A verbatim citation shows where the words occur, not why the model generated them. `markers` finds the passages that
an answer names. A refusal has no citations; `nearest_sentences` are shown in their place.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from typing import Any, Literal

import regex

from antiphon.pipelines.question import content_stems
from antiphon.pipelines.quotes import Quote, headings_of, quotable_lines
from antiphon.retrieval import Passage
from antiphon.retrieval.keywords import with_plain_characters
from antiphon.retrieval.passage import TRAIL
from antiphon.retrieval.source_file import FileChange, file_change

WORDS = 6
"""Minimum number of words of a citation, unless the whole answer is shorter or names the passage by its number."""

# A word with inner apostrophes and hyphens, and with its combining marks. In scripts without spaces each user-perceived
# character counts as a word.
_WITHOUT_SPACES = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}ー]"
_LETTERS = rf"(?:(?!{_WITHOUT_SPACES})[\w\p{{M}}\u200c\u200d])+"
_WORD = regex.compile(rf"(?={_WITHOUT_SPACES})\X|(?![\p{{M}}\u200c\u200d]){_LETTERS}(?:['’-]{_LETTERS})*")
_NUMBER = re.compile(r"\[(\d{1,4})\]")  # the number of a passage next to a quote; it is not a word
_PIECE = re.compile(rf"{_NUMBER.pattern}|\n")
_OPENING, _CLOSING = frozenset("`:*{<~#!-./$@"), frozenset("`*}>~_")  # markup next to a quote that is part of it
_NEVER = "\0"  # separates texts, so that no quote spans two of them
_BRACKETS = {")": "(", "]": "[", "»": "«", "”": "“", "）": "（", "」": "「"}
_OCCURRENCES = 64  # of one window, at most this many occurrences are extended, because texts may be repetitive


@dataclass(frozen=True, slots=True)
class Citation:
    """A span of the answer that quotes a passage verbatim (white space may differ), or a marker that names a passage.

    If a table row is quoted, its column names are part of the quote.

    Attributes:
        start: the span's first character in the answer.
        passage: the number of the passage, from 1.
        source: the document.
        source_start: first character of the quoted text in the document.
        text: the quoted text of the document. For a marker: the line of the passage that shares
            most words with the marker's sentence.
        location: the place of the quoted text in the file, such as ``page 3``; empty if the format has no places.
        also_in: further documents that have the same passage.
        section: the innermost heading above the quoted text; may be empty.
        kind: "verbatim", or "marker" for a number in brackets with which the model names a passage.
        unsupported: whether the passage of a marker shares no content word with the marker's sentence.
        outdated: "changed" or "deleted" if the file was changed or deleted after it was indexed;
            else empty.
    """

    start: int
    end: int
    passage: int
    source: str
    source_start: int
    source_end: int
    text: str
    location: str = ""
    also_in: tuple[str, ...] = ()
    section: str = ""
    kind: Literal["verbatim", "marker"] = "verbatim"
    unsupported: bool = False
    outdated: FileChange = ""


def cited_span(passage: Passage, number: int, first: int, last: int, **fields: Any) -> Citation:
    """Return the citation of the characters ``first`` to ``last`` of a passage.

    Args:
        number: the number of the passage, from 1.
        **fields: further fields of the citation, such as the span of the answer.
    """
    first, last = passage.start + first, passage.start + last
    named = {
        "source": passage.source,
        "source_start": first,
        "source_end": last,
        "text": passage.text[first - passage.start : last - passage.start],
        "location": passage.location_of(first, last),
        "also_in": passage.also_in,
        "outdated": file_change(passage.metadata),
        "section": str(passage.metadata.get("title") or "").rpartition(TRAIL)[2],
    }
    return Citation(**{"start": 0, "end": 0, "passage": number, **named, **fields})


def cite(answer: str, passages: Sequence[Passage], *, words: int = WORDS) -> tuple[Citation, ...]:
    """Return the verbatim citations of an answer in text order; none overlap, and longer spans have priority.

    A span is a citation if it has at least ``words`` words. A shorter span is a citation in two
    cases: it is the whole answer, or it is all the text between the number of its passage and the
    next number or line break, as in ``[2] It is red.`` Case and punctuation must match. White space
    may differ, and so may the Unicode form of a character (composed letters, ligatures, full-width
    forms, quotation marks). A citation covers whole user-perceived characters and the markup next
    to them. If two passages have equally long quotes, the passage whose number stands next to the
    quote is chosen, else the earlier passage. The time is linear in the length of answer and
    passages.

    Args:
        words: the minimum number of words.

    Raises:
        ValueError: ``words`` is below 1.
    """
    if words < 1:
        raise ValueError(f"words is {words}; a citation has at least 1 word.")
    answer_words = _Words(answer)
    if not len(answer_words):
        return ()
    min_words = min(words, len(answer_words))
    rows = [[line for line in lines if line.is_row] for lines in quotable_lines(passages)]
    sources = [_Words(passage.text, own) for passage, own in zip(passages, rows, strict=True)]
    named = [numbers for first, end, numbers in _pieces(answer_words) for _ in range(first, end)]
    found = _matches(answer_words, sources, min_words, named), _short_matches(answer_words, sources, min_words)
    citations: list[Citation] = []
    for match in sorted(_choose(chain(*found), min_words, named)):
        after = citations[-1].end if citations else 0
        citations.append(_citation(answer_words, sources, passages, match, after))
    return tuple(citations)


class _Words:
    """A text, split into words and the characters between them.

    All characters are plain (see `with_plain_characters`); a run of white space becomes one space.

    Args:
        rows: table rows in the text. A row also matches if the answer quotes it with its column
            names.
    """

    def __init__(self, text: str, rows: Sequence[Quote] = ()) -> None:
        self.text = text
        numbers = {match.start(1) for match in _NUMBER.finditer(text)}
        self.spans = [match.span() for match in _WORD.finditer(text) if match.start() not in numbers]
        self.words = [with_plain_characters(text[start:end]) for start, end in self.spans]
        befores = [0, *(end for _, end in self.spans)]
        gaps = [text[before:start] for before, (start, _) in zip(befores, self.spans, strict=False)]
        self.joined = [
            (with_plain_characters(re.sub(r"\s+", " ", gap)), word) for gap, word in zip(gaps, self.words, strict=True)
        ]
        for row in rows:  # a match of any part of a row is a quote of the whole row
            named = _Words(row.sentence)
            self.spans += [(row.start, row.end)] * len(named)
            self.words += named.words
            self.joined += [(_NEVER, word) for _, word in named.joined[:1]] + named.joined[1:]

    def __len__(self) -> int:
        return len(self.words)

    def window(self, first: int, count: int) -> tuple[object, ...]:
        """Return a hashable key of ``count`` words from ``first`` on; equal quotes have equal keys."""
        return (self.words[first], *self.joined[first + 1 : first + count])

    def windows(self, count: int) -> Iterator[tuple[int, tuple[object, ...]]]:
        """Yield the index and the key of every window of ``count`` words."""
        return ((first, self.window(first, count)) for first in range(len(self) - count + 1))


# (first word in the answer, end, passage index, first word in the passage)
_Match = tuple[int, int, int, int]


def _matches(
    answer_words: _Words, sources: Sequence[_Words], min_words: int, named: Sequence[Sequence[int]]
) -> Iterator[_Match]:
    """Yield the maximal runs of at least ``min_words`` words that the answer shares with a passage.

    ``named`` lists, for each word, the indices of the passages whose numbers stand next to the
    word; these passages are tried first.
    """
    places: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for number, source in enumerate(sources):
        for first, window in source.windows(min_words):
            found = places.setdefault(window, [])
            if len(found) < _OCCURRENCES:
                found.append((number, first))
    furthest = 0  # the end of the runs so far; a run that ends no later is within one of them
    for first, window in answer_words.windows(min_words):
        for number, source_first in sorted(places.get(window, ()), key=lambda place: place[0] not in named[first]):
            if _reaches(answer_words, furthest + 1, sources[number], source_first - first, first, min_words):
                end = _extend(answer_words, first, sources[number], source_first, min_words)
                if end > furthest:
                    furthest = end
                    yield first, end, number, source_first


def _short_matches(answer_words: _Words, sources: Sequence[_Words], min_words: int) -> Iterator[_Match]:
    """Yield pieces that are too short for `_matches`, but occur in a passage whose number stands next to the piece."""
    places: dict[tuple[int, int], dict[tuple[object, ...], int]] = {}
    for first, end, numbers in _pieces(answer_words):
        count = end - first
        for number in numbers:
            if 0 < count < min_words and 0 <= number < len(sources):
                if (number, count) not in places:
                    windows = reversed([*sources[number].windows(count)])
                    places[number, count] = {window: source_first for source_first, window in windows}
                source_first = places[number, count].get(answer_words.window(first, count))
                if source_first is not None:
                    yield first, end, number, source_first
                    break


def _pieces(answer_words: _Words) -> Iterator[tuple[int, int, list[int]]]:
    """Split the answer at line breaks and passage numbers; yield each piece with the passages named next to it."""
    starts = [start for start, _ in answer_words.spans]
    ends = [
        (0, None),
        *((match.end(), match[1]) for match in _PIECE.finditer(answer_words.text)),
        (len(answer_words.text) + 1, None),
    ]
    for (begin, before), (stop, after) in pairwise(ends):
        numbers = [int(number) - 1 for number in (before, after) if number is not None]
        yield bisect_left(starts, begin), bisect_left(starts, stop), numbers


def _reaches(answer_words: _Words, end: int, source: _Words, shift: int, first: int, min_words: int) -> bool:
    """Return whether a run from ``first`` may reach ``end``; compare only the ``min_words`` words before ``end``."""
    if end <= first + min_words:
        return True
    return (
        end <= len(answer_words)
        and end + shift <= len(source)
        and answer_words.window(end - min_words, min_words) == source.window(end - min_words + shift, min_words)
    )


def _extend(answer_words: _Words, first: int, source: _Words, source_first: int, matched: int) -> int:
    """Extend a run of ``matched`` equal words as far as possible; return its end in the answer."""
    end = first + matched
    shift = source_first - first
    while (
        end < len(answer_words) and end + shift < len(source) and answer_words.joined[end] == source.joined[end + shift]
    ):
        end += 1
    return end


def _choose(matches: Iterator[_Match], min_words: int, named: Sequence[Sequence[int]]) -> list[_Match]:
    """Choose matches, longest first.

    If a match overlaps a chosen match, it is cut to its longest part outside all chosen matches.
    This part is kept if it has at least ``min_words`` words.
    """
    queue = [
        (first - end, number not in named[first], number, first, source_first)
        for first, end, number, source_first in matches
    ]
    heapq.heapify(queue)
    taken: set[int] = set()
    chosen = []
    while queue:
        negative, is_unnamed, number, first, source_first = heapq.heappop(queue)
        free_first, free_end = _longest_free(first, first - negative, taken)
        if free_end - free_first < min(min_words, -negative):
            continue
        if free_end - free_first == -negative:
            taken.update(range(free_first, free_end))
            chosen.append((free_first, free_end, number, source_first))
        else:
            source_first += free_first - first
            heapq.heappush(queue, (free_first - free_end, is_unnamed, number, free_first, source_first))
    return chosen


def _longest_free(first: int, end: int, taken: set[int]) -> tuple[int, int]:
    best, start = (first, first), first
    for word in range(first, end + 1):
        if word == end or word in taken:
            if word - start > best[1] - best[0]:
                best = (start, word)
            start = word + 1
    return best


def _citation(
    answer_words: _Words, sources: Sequence[_Words], passages: Sequence[Passage], match: _Match, after: int
) -> Citation:
    """Return the citation of a match and the markup next to the match. The citation begins at ``after`` or later."""
    first, end, number, source_first = match
    passage, source = passages[number], sources[number]
    (start, _), (_, stop) = answer_words.spans[first], answer_words.spans[end - 1]
    (source_start, _), (_, source_stop) = source.spans[source_first], source.spans[source_first + end - first - 1]
    before = _shared_markup(
        reversed(answer_words.text[after:start]), reversed(source.text[:source_start]), allowed=_OPENING
    )
    behind = _shared_markup(answer_words.text[stop:], source.text[source_stop:], allowed=_CLOSING)
    if not behind and _closes(answer_words.text[start:stop], answer_words.text[stop : stop + 1]):
        behind = int(source.text[source_stop : source_stop + 1] == answer_words.text[stop])
    place = {"start": start - before, "end": stop + behind}
    return cited_span(passage, number + 1, source_start - before, source_stop + behind, **place)


def _closes(text: str, bracket: str) -> bool:
    """Return whether a bracket after a text closes a bracket that the text opens."""
    return bracket in _BRACKETS and text.count(_BRACKETS[bracket]) > text.count(bracket)


def _shared_markup(one: Iterable[str], other: Iterable[str], *, allowed: Collection[str]) -> int:
    """Return the number of allowed characters that two texts both start with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1] and pair[0] in allowed, pairs))


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
