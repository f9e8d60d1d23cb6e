"""Merge identical and nearly identical passages into one result of a search."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon.retrieval.keywords import with_plain_characters
from antiphon.retrieval.passage import Passage

_WORD = re.compile(r"\w+(?:['-]\w+)*")
_DECISIVE = re.compile(r"\d|[A-Z]|n't$")  # numbers, names, abbreviations, and negations
_NEGATIONS = frozenset(
    re.findall(r"\w+", "cannot jamais kein keine keinen never nicht nie no non none not nunca sans sin without")
)
_SHINGLE = 3  # words
_LEAST_OVERLAP = 0.85  # share of common shingles; two passages of 40 words may differ in one word


def merge_duplicates(passages: Sequence[Passage]) -> list[Passage]:
    """Drop passages that repeat an earlier passage, and add their sources to ``also_in`` of the earlier passage.

    A passage repeats another if both have the same words below the same headings and column names.
    Punctuation, case and white space do not matter. In a long passage a few words may differ, but
    not numbers, negations and words with a capital letter.

    Args:
        passages: The passages, best first.
    """
    kept: list[Passage] = []
    index = _Shingles()
    for passage in passages:
        words = _WORD.findall(with_plain_characters(passage.text_with_headings))
        place = index.find(words)
        if place is None:
            index.add(words)
            kept.append(passage)
        else:
            kept[place] = _merged(kept[place], passage)
    return kept


def _merged(first: Passage, repeated: Passage) -> Passage:
    sources = dict.fromkeys([*first.also_in, repeated.source, *repeated.also_in])
    return replace(first, also_in=tuple(source for source in sources if source != first.source))


@dataclass(slots=True)
class _Shingles:
    """An index of the kept passages, by all their words and by their runs of three words (shingles)."""

    exact: dict[tuple[str, ...], int] = field(default_factory=dict)
    places: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    decisive: list[Counter[str]] = field(default_factory=list)

    def find(self, words: Sequence[str]) -> int | None:
        """Return the index of the first kept passage with nearly the same words, or None."""
        plain = tuple(word.casefold() for word in words)
        if plain and plain in self.exact:
            return self.exact[plain]
        shingles = _shingles(plain)
        shared = Counter(place for shingle in shingles for place in self.places.get(shingle, ()))
        decisive = _decisive_words(words)
        near = (
            place
            for place, count in sorted(shared.items())
            if count >= _LEAST_OVERLAP * (len(shingles) + self.sizes[place] - count)
            and decisive == self.decisive[place]
        )
        return next(near, None)

    def add(self, words: Sequence[str]) -> None:
        """Add the next kept passage."""
        plain = tuple(word.casefold() for word in words)
        shingles = _shingles(plain)
        place = len(self.sizes)
        self.exact.setdefault(plain, place)
        for shingle in shingles:
            self.places.setdefault(shingle, []).append(place)
        self.sizes.append(len(shingles))
        self.decisive.append(_decisive_words(words))


def _shingles(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[first : first + _SHINGLE]) for first in range(len(words) - _SHINGLE + 1)}


def _decisive_words(words: Sequence[str]) -> Counter[str]:
    return Counter(word.casefold() for word in words if _DECISIVE.search(word) or word.casefold() in _NEGATIONS)
