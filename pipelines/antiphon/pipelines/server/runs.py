"""Which passage an accepted run was copied from, for pages that show it while it comes. Knows no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.accel import Origin
from antiphon.retrieval import Passage

LONGEST = 240
"""So many characters before a run are looked at, to tell passages apart that hold the same run."""

LEAST = 3
"""A run of fewer characters is everywhere, and says nothing of a passage, unless what stands before it does."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A passage with its white space folded, and where each character of that stands in the passage."""

    text: str
    places: tuple[int, ...]


class Runs:
    """The text so far, cut into runs: what one forward accepted of its draft, and the model's own tokens.

    A run belongs to the passage that it continues: the one that holds it with the most of the text before it.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._sources = [_folded(passage.text) for passage in passages]
        self._text = ""
        self._origins: list[Origin] = []

    def push(self, text: str, origins: Sequence[Origin]) -> list[dict[str, Any]]:
        """The runs of the text that has come: its characters, whether they were drafted, and where they stand.

        ``passage`` counts from 1; ``start`` and ``end`` are characters of the passage.
        """
        begin = len(self._text)
        self._text += text
        self._origins += origins
        runs: list[tuple[int, int, int, bool]] = []
        while self._origins and self._origins[0].start < len(self._text):
            origin = self._origins[0]
            start, end = max(origin.start, begin), min(origin.end, len(self._text))
            if end > start:
                _extend(runs, start, end, origin)
            if origin.end > len(self._text):
                break
            self._origins.pop(0)
        return [self._run(*run) for run in runs]

    def _run(self, start: int, end: int, step: int, is_drafted: bool) -> dict[str, Any]:
        run = {"text": self._text[start:end], "step": step, "drafted": is_drafted}
        found = self._found(start, end) if is_drafted else None
        return run if found is None else run | found

    def _found(self, start: int, end: int) -> dict[str, Any] | None:
        """The passage that holds the run behind the longest piece of what stands before it."""
        said = " ".join(self._text[max(start - LONGEST, 0) : end].split())
        run = " ".join(self._text[start:end].split())
        best: tuple[int, int, int] | None = None
        for number, source in enumerate(self._sources, start=1):
            length, place = _longest_ending(source.text, said, max(len(run), 1))
            if length >= max(LEAST, len(run)) and run and (best is None or length > best[0]):
                best = length, number, place
        if best is None:
            return None
        _, number, place = best
        places = self._sources[number - 1].places
        return {"passage": number, "start": places[place - len(run)], "end": places[place - 1] + 1}


def _extend(runs: list[tuple[int, int, int, bool]], start: int, end: int, origin: Origin) -> None:
    how = (origin.step, origin.is_drafted)
    if runs and runs[-1][2:] == how and runs[-1][1] == start:
        runs[-1] = (runs[-1][0], end, *how)
    else:
        runs.append((start, end, *how))


def _longest_ending(source: str, said: str, least: int) -> tuple[int, int]:
    """How many of the last characters of ``said`` stand together in ``source``, and where they end there."""
    low, high, place = 0, len(said), -1
    found = source.find(said[-least:]) if least <= len(said) else -1
    if found < 0:
        return 0, -1
    low, place = least, found + least
    while low < high:
        middle = (low + high + 1) // 2
        found = source.find(said[-middle:])
        if found < 0:
            high = middle - 1
        else:
            low, place = middle, found + middle
    return low, place


def _folded(text: str) -> _Source:
    words = [(match.start(), match.group()) for match in re.finditer(r"\S+", text)]
    folded, places = "", list[int]()
    for start, word in words:
        if folded:
            folded += " "
            places.append(start - 1)
        folded += word
        places += range(start, start + len(word))
    return _Source(folded, tuple(places))
