"""Split a streamed answer into segments, each with the passage from which it was copied, for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import regex

from antiphon.accel import Origin
from antiphon.pipelines.citations import cite
from antiphon.pipelines.rendering.plain_quotes import without_markup
from antiphon.pipelines.rendering.segments import cited_segments
from antiphon.retrieval import Passage
from antiphon.retrieval.keywords import with_plain_characters

MAX_CONTEXT = 240
"""Number of characters before a segment that are compared, to choose between passages with the same segment."""

MIN_MATCH = 3
"""Minimum length of a match in characters, context included; shorter matches occur in any passage."""

_PIECE = regex.compile(r"\s+|\X")


@dataclass(frozen=True, slots=True)
class _FoldedPassage:
    """A passage's text with single spaces and plain characters, and each character's span in the original."""

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class SegmentTracker:
    """Splits a growing text into segments.

    Each forward pass adds a segment of drafted tokens and a segment with the model's own token. If
    several passages contain a drafted segment, it is attributed to the passage that also matches
    the most text before the segment.

    Args:
        has_prefix: whether the first text is a response prefix. Missing origins alone do not show
            this, because the text of a model on a server has none either.
    """

    def __init__(self, passages: Sequence[Passage], *, has_prefix: bool = False) -> None:
        self._originals = passages
        self._has_prefix = has_prefix
        self._passages = [_fold_whitespace(passage.text) for passage in passages]
        self._text = ""
        self._origins: list[Origin] = []

    def push(self, text: str, origins: Sequence[Origin]) -> list[dict[str, Any]]:
        """Return the segments of new text.

        Returns:
            For each segment, ``text``, ``step`` and ``drafted``; if a passage contains the segment,
            also ``passage`` (from 1) and the characters ``start`` to ``end`` of that passage.
            Segments of the response prefix have the step None and the field ``quoted``; for a quote
            with markup, ``display`` is the quote without markup.
        """
        begin = len(self._text)
        self._text += text
        if not begin and not origins and self._has_prefix:
            return self._quoted_segments(text)
        self._origins += origins
        segments: list[tuple[int, int, int, bool]] = []  # start, end, step, drafted
        while self._origins and self._origins[0].start < len(self._text):
            origin = self._origins[0]
            start, end = max(origin.start, begin), min(origin.end, len(self._text))
            if end > start:
                _append_or_extend(segments, start, end, origin)
            if origin.end > len(self._text):
                break
            self._origins.pop(0)
        return [self._segment(*segment) for segment in segments]

    def _quoted_segments(self, text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for segment, citation in cited_segments(text, cite(text, self._originals)):
            found.append({"text": segment, "step": None, "drafted": False, "quoted": True})
            if citation is not None and (shown := without_markup(segment)) != segment:
                found[-1]["display"] = shown
            if citation is not None:
                offset = self._originals[citation.passage - 1].start
                span = {"start": citation.source_start - offset, "end": citation.source_end - offset}
                found[-1] |= {"passage": citation.passage, **span}
        return found

    def _segment(self, start: int, end: int, step: int, is_drafted: bool) -> dict[str, Any]:
        segment = {"text": self._text[start:end], "step": step, "drafted": is_drafted}
        source = self._find_source(start, end) if is_drafted else None
        return segment if source is None else segment | source

    def _find_source(self, start: int, end: int) -> dict[str, Any] | None:
        """Return the passage that contains the segment, and the segment's offsets in it.

        If there are several such passages, the passage that also contains the most text before the
        segment is returned.
        """
        with_context = _plain(self._text[max(start - MAX_CONTEXT, 0) : end])
        segment = _plain(self._text[start:end])
        best: tuple[int, int, int] | None = None
        for number, passage in enumerate(self._passages, start=1):
            length, position = _longest_suffix(passage.text, with_context, max(len(segment), 1))
            if length >= max(MIN_MATCH, len(segment)) and segment and (best is None or length > best[0]):
                best = length, number, position
        if best is None:
            return None
        _, number, position = best
        found = self._passages[number - 1]
        return {"passage": number, "start": found.starts[position - len(segment)], "end": found.ends[position - 1]}


def _append_or_extend(segments: list[tuple[int, int, int, bool]], start: int, end: int, origin: Origin) -> None:
    key = (origin.step, origin.is_drafted)
    if segments and segments[-1][2:] == key and segments[-1][1] == start:
        segments[-1] = (segments[-1][0], end, *key)
    else:
        segments.append((start, end, *key))


def _longest_suffix(source: str, text: str, min_length: int) -> tuple[int, int]:
    """Return the length of the longest suffix of ``text`` that occurs in ``source``, and its end in ``source``."""
    found = source.find(text[-min_length:]) if min_length <= len(text) else -1
    if found < 0:
        return 0, -1
    low, high, position = min_length, len(text), found + min_length
    while low < high:
        middle = (low + high + 1) // 2
        found = source.find(text[-middle:])
        if found < 0:
            high = middle - 1
        else:
            low, position = middle, found + middle
    return low, position


def _plain(text: str) -> str:
    return with_plain_characters(" ".join(text.split()))


def _fold_whitespace(text: str) -> _FoldedPassage:
    parts: list[str] = []
    starts, ends = list[int](), list[int]()
    for match in _PIECE.finditer(text):
        folded = " " if match[0].isspace() else with_plain_characters(match[0])
        parts.append(folded)
        starts += [match.start()] * len(folded)
        ends += [match.end()] * len(folded)
    return _FoldedPassage("".join(parts), tuple(starts), tuple(ends))
