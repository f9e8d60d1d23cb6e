"""Which spans of an answer stand verbatim in which passage. Says where words stand, never why the model said them."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from antiphon.retrieval import Passage

WORDS = 6
"""The fewest words that make a citation, unless the whole answer is shorter, or the answer names the passage."""

# A word, with its inner apostrophes and hyphens; in scripts that write no spaces each character counts as one.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|(?:(?![\u3040-\u30ff\u3400-\u9fff])\w)+(?:['’-]\w+)*")
_NUMBER = re.compile(r"\[(\d{1,4})\]")  # of a passage, as a model writes it beside a quote; it is no word
_PIECE = re.compile(rf"{_NUMBER.pattern}|\n")
_OCCURRENCES = 64  # places of one window that are followed up: a bound for texts that repeat themselves


@dataclass(frozen=True, slots=True)
class Citation:
    """A span of the answer that stands verbatim in a passage, white space aside.

    ``start`` and ``end`` count characters of the answer; ``source_start`` and ``source_end`` those of the document
    ``source``. ``passage`` is the passage's number from 1; ``text`` is the quotation as it stands in the source.
    """

    start: int
    end: int
    passage: int
    source: str
    source_start: int
    source_end: int
    text: str


def cite(answer: str, passages: Sequence[Passage], *, words: int = WORDS) -> tuple[Citation, ...]:
    """The citations of an answer, in its order: longest first chosen, none overlapping another.

    A span counts from ``words`` words on, or if it is all the words of the answer, or all that stands before or after
    the number of its passage, as in ``[2] It is red.`` Case and punctuation between the words must agree; any white
    space equals any other. Of equally long quotations the one in the earlier passage counts. Takes time linear in
    answer and passages.

    Raises:
        ValueError: ``words`` is below 1.
    """
    if words < 1:
        raise ValueError(f"words is {words}; a citation has at least 1 word.")
    said = _Words(answer)
    if not len(said):
        return ()
    least = min(words, len(said))
    sources = [_Words(passage.text) for passage in passages]
    chosen = _choose(chain(_matches(said, sources, least), _short_matches(said, sources, least)), least)
    return tuple(_citation(said, sources, passages, match) for match in sorted(chosen))


class _Words:
    """A text as words with what stands between them; runs of white space count as one space."""

    def __init__(self, text: str) -> None:
        self.text = text
        numbers = {match.start(1) for match in _NUMBER.finditer(text)}
        self.spans = [match.span() for match in _WORD.finditer(text) if match.start() not in numbers]
        self.words = [text[start:end] for start, end in self.spans]
        befores = [0, *(end for _, end in self.spans)]
        gaps = [text[before:start] for before, (start, _) in zip(befores, self.spans, strict=False)]
        self.joined = [(re.sub(r"\s+", " ", gap), word) for gap, word in zip(gaps, self.words, strict=True)]

    def __len__(self) -> int:
        return len(self.words)

    def window(self, first: int, count: int) -> tuple[object, ...]:
        """``count`` words from ``first`` on, as something that two texts can be compared by."""
        return (self.words[first], *self.joined[first + 1 : first + count])

    def windows(self, count: int) -> Iterator[tuple[int, tuple[object, ...]]]:
        """Every window and where it begins."""
        return ((first, self.window(first, count)) for first in range(len(self) - count + 1))


# (first word in the answer, end, passage index, first word there)
_Match = tuple[int, int, int, int]


def _matches(said: _Words, sources: Sequence[_Words], least: int) -> Iterator[_Match]:
    """Every run of at least ``least`` words that answer and passage share, as long as it goes."""
    places: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for number, source in enumerate(sources):
        for first, window in source.windows(least):
            found = places.setdefault(window, [])
            if len(found) < _OCCURRENCES:
                found.append((number, first))
    furthest = 0  # where the runs found so far end; a run that ends no later lies within one of them
    for first, window in said.windows(least):
        for number, there in places.get(window, ()):
            if _reaches(said, furthest + 1, sources[number], there - first, first, least):
                end = _extend(said, first, sources[number], there, least)
                if end > furthest:
                    furthest = end
                    yield first, end, number, there


def _short_matches(said: _Words, sources: Sequence[_Words], least: int) -> Iterator[_Match]:
    """Pieces of fewer than ``least`` words, between line breaks and numbers, that stand whole in what they name."""
    places: dict[tuple[int, int], dict[tuple[object, ...], int]] = {}
    for first, end, numbers in _pieces(said):
        count = end - first
        for number in numbers:
            if 0 < count < least and 0 <= number < len(sources):
                if (number, count) not in places:
                    windows = reversed([*sources[number].windows(count)])
                    places[number, count] = {window: there for there, window in windows}
                there = places[number, count].get(said.window(first, count))
                if there is not None:
                    yield first, end, number, there
                    break


def _pieces(said: _Words) -> Iterator[tuple[int, int, list[int]]]:
    """The words from line break or number to the next, and the passages that these numbers name: before, then after."""
    starts = [start for start, _ in said.spans]
    ends = [(0, None), *((match.end(), match[1]) for match in _PIECE.finditer(said.text)), (len(said.text) + 1, None)]
    for (begin, before), (stop, after) in pairwise(ends):
        numbers = [int(number) - 1 for number in (before, after) if number is not None]
        yield bisect_left(starts, begin), bisect_left(starts, stop), numbers


def _reaches(said: _Words, end: int, source: _Words, shift: int, first: int, least: int) -> bool:
    """Whether a run from ``first`` can end at ``end`` or later: the window before that end must be shared too."""
    if end <= first + least:
        return True
    return (
        end <= len(said)
        and end + shift <= len(source)
        and said.window(end - least, least) == source.window(end - least + shift, least)
    )


def _extend(said: _Words, first: int, source: _Words, there: int, matched: int) -> int:
    """Where the run that begins with ``matched`` equal words ends in the answer."""
    end = first + matched
    shift = there - first
    while end < len(said) and end + shift < len(source) and said.joined[end] == source.joined[end + shift]:
        end += 1
    return end


def _choose(matches: Iterator[_Match], least: int) -> list[_Match]:
    """Longest first; what overlaps a longer one keeps the longest part that is still free, if that is long enough."""
    queue = [(first - end, number, first, there) for first, end, number, there in matches]
    heapq.heapify(queue)
    taken: set[int] = set()
    chosen = []
    while queue:
        negative, number, first, there = heapq.heappop(queue)
        free_first, free_end = _longest_free(first, first - negative, taken)
        if free_end - free_first < min(least, -negative):
            continue
        if free_end - free_first == -negative:
            taken.update(range(free_first, free_end))
            chosen.append((free_first, free_end, number, there))
        else:
            heapq.heappush(queue, (free_first - free_end, number, free_first, there + free_first - first))
    return chosen


def _longest_free(first: int, end: int, taken: set[int]) -> tuple[int, int]:
    best, start = (first, first), first
    for word in range(first, end + 1):
        if word == end or word in taken:
            if word - start > best[1] - best[0]:
                best = (start, word)
            start = word + 1
    return best


def _citation(said: _Words, sources: Sequence[_Words], passages: Sequence[Passage], match: _Match) -> Citation:
    first, end, number, there = match
    passage, source = passages[number], sources[number]
    start, stop = source.spans[there][0], source.spans[there + end - first - 1][1]
    return Citation(
        start=said.spans[first][0],
        end=said.spans[end - 1][1],
        passage=number + 1,
        source=passage.source,
        source_start=passage.start + start,
        source_end=passage.start + stop,
        text=passage.text[start:stop],
    )
