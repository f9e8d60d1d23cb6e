"""Markers: the numbers in brackets, such as ``[2]``, with which a model names the passages that support its text.

A marker of a passage that is not in the prompt is removed from the answer. Numbers in code are not markers, and
neither are numbers that the answer copied from a passage together with the words before them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from antiphon.accel import Completion, Origin
from antiphon.accel.decoding.stats import TokenLogprob
from antiphon.accel.text.completion import Piece, TextStream
from antiphon.pipelines.citations import Citation, cite, cited_span, nearest_sentences
from antiphon.pipelines.question import content_stems
from antiphon.retrieval import Passage
from antiphon.retrieval.segmentation import sentences

_NUMBER = r"[1-9]\d{0,2}"
_NOTE = r"(?:†[^\]】\n]{0,40})?"  # gpt-oss adds the lines, as in 【2†L8-L10】
MARKER = rf"[\[【][ \t]*{_NUMBER}(?:[ \t]*[,;，、][ \t]*{_NUMBER})*[ \t]*{_NOTE}[\]】]"
"""The pattern of a marker, which may name several passages."""

_FENCE = r"(?P<fence>```)"
_UNIT = rf"{_FENCE}|`[^`\n]+`|(?P<marker>[ \t]*{MARKER})(?!\()"  # [1](address) is a link
# The end of a text that further text may turn into code or into a marker.
_OPEN_FENCE = r"(?P<open>`{1,2}\Z)"
_OPEN = rf"(?P<open>`[^`\n]*\Z|``\Z|[ \t]*(?:[\[【][\d \t,;，、]*{_NOTE}|{MARKER})\Z|[ \t]+\Z)"
_UNITS = {is_last: re.compile(_UNIT if is_last else f"{_OPEN}|{_UNIT}") for is_last in (False, True)}
_FENCES = {is_last: re.compile(_FENCE if is_last else f"{_FENCE}|{_OPEN_FENCE}") for is_last in (False, True)}
_CONTEXT = 12  # if a passage contains a number and this many characters before it, the answer copied the number


class _Marker(NamedTuple):
    """The marker of one passage: its span in the text, and the span of its brackets.

    Brackets may contain several markers.
    """

    number: int
    start: int
    end: int
    brackets: tuple[int, int]


class MarkerReader:
    """Finds the markers in a growing text, and removes markers whose passage does not exist.

    Args:
        passages: the numbered passages.

    Attributes:
        removed: the spans that were removed, in characters of the original text.
        read: the number of characters of the original text that have been processed.
        markers: the markers of existing passages; their offsets refer to the text without the
            removed spans.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._texts = [" ".join(passage.text.split()) for passage in passages]
        self._held = self._before = ""  # text that is not decided, and the end of the text before it
        self._is_code = self._skips_space = False
        self.removed: list[tuple[int, int]] = []
        self.read = self._written = 0
        self.markers: list[_Marker] = []

    def push(self, text: str, *, is_last: bool = False) -> str:
        """Append text; return the text that is now final, without removed markers.

        If ``is_last`` is True, all remaining text is final.
        """
        self._held += text
        parts = []
        while self._held:
            if self._skips_space and (spaces := len(self._held) - len(self._held.lstrip(" \t"))):
                self._take(spaces, is_kept=False)
                continue
            self._skips_space = False
            unit = (_FENCES if self._is_code else _UNITS)[is_last].search(self._held)
            parts.append(self._take(len(self._held) if unit is None else unit.start()))
            if unit is None or unit.lastgroup == "open":
                break
            if unit.lastgroup == "fence":
                self._is_code = not self._is_code
            parts.append(self._take_marker(unit[0]) if unit.lastgroup == "marker" else self._take(len(unit[0])))
        return "".join(parts)

    def _take(self, count: int, *, is_kept: bool = True) -> str:
        """Process the next ``count`` characters; return them, or "" if they are removed."""
        text, self._held = self._held[:count], self._held[count:]
        if not is_kept:
            start = self.removed.pop()[0] if self.removed and self.removed[-1][1] == self.read else self.read
            self.removed.append((start, self.read + count))
        self.read += count
        self._before = (self._before + text)[-2 * _CONTEXT :]
        self._written += count if is_kept else 0
        return text if is_kept else ""

    def _take_marker(self, text: str) -> str:
        """Process a marker with the spaces before it; return the part that is kept."""
        context = " ".join(self._before.split())[-_CONTEXT:]
        if len(context) == _CONTEXT and any(f"{context}{text}" in each for each in self._texts):
            return self._take(len(text))
        numbers = [*re.finditer(_NUMBER, text.partition("†")[0])]
        live = [number for number in numbers if int(number[0]) <= len(self._texts)]
        if not live:
            self._skips_space = not self._before or self._before.endswith("\n")
            return self._take(len(text), is_kept=False)
        # With a number, the comma before it is removed, too; with the first number, the comma after it.
        first, origin, done = numbers.index(live[0]), self._written, 0
        dead = [(numbers[0].start(), live[0].start())] if first else []
        dead += [(one.end(), other.end()) for one, other in pairwise(numbers[first:]) if other not in live]
        parts = list[str]()
        for start, end in dead:
            parts.append(self._take(start - done))
            self._take(end - start, is_kept=False)
            done = end
        parts.append(self._take(len(text) - done))
        ends = [origin + each.end() - sum(end - start for start, end in dead if end <= each.end()) for each in live]
        brackets = (origin + len(text) - len(text.lstrip(" \t")), self._written)
        spans = pairwise([brackets[0], *ends[:-1], brackets[1]])
        self.markers += [_Marker(int(each[0]), *span, brackets) for each, span in zip(live, spans, strict=True)]
        return "".join(parts)


def cite_all(text: str, passages: Sequence[Passage], num_marked: int) -> tuple[Citation, ...]:
    """Return the citations of an answer, in the order of its text: verbatim spans, and markers.

    Args:
        text: the answer.
        passages: the passages that the answer may cite.
        num_marked: the first ``num_marked`` passages have a number in the prompt; 0: no markers.
    """
    found = cite(text, passages)
    if not num_marked:
        return found
    reader = MarkerReader(passages[:num_marked])
    reader.push(text, is_last=True)
    markers = (_citation(text, marker, passages[marker.number - 1]) for marker in reader.markers)
    return tuple(sorted((*found, *markers), key=lambda citation: citation.start))


def _citation(text: str, marker: _Marker, passage: Passage) -> Citation:
    """Return the citation of a marker, with the passage's line that shares most words with the marker's sentence."""
    sentence = _sentence(text, *marker.brackets)
    words = content_stems(sentence)
    is_unsupported = bool(words) and not words & content_stems(passage.text_with_headings)
    line = next(iter(nearest_sentences(sentence, [passage])), None)
    span = (passage.start, passage.end) if line is None else (line.start, line.end)
    place = {"start": marker.start, "end": marker.end, "kind": "marker", "unsupported": is_unsupported}
    return cited_span(passage, marker.number, span[0] - passage.start, span[1] - passage.start, **place)


def _sentence(text: str, start: int, end: int) -> str:
    """Return the sentence of a marker: the sentence before the marker, or after it if the marker begins a line."""
    before, after = (re.sub(MARKER, " ", part) for part in (text[:start], text[end:]))
    line = after.partition("\n")[0]
    if not before.rpartition("\n")[2].strip() and line.strip():
        return next((line[first:last] for first, last in sentences(line)), "")
    line = before.rstrip().rpartition("\n")[2]
    return ["", *(line[first:last] for first, last in sentences(line))][-1]


class MarkedStream(TextStream):
    """A stream of an answer from which markers of passages that do not exist are removed.

    Text that may become such a marker is held back, with its tokens, until later text shows whether
    it is a marker. Tokens, usage and log-probabilities do not change: a token whose text is removed
    has no characters.

    Args:
        passages: the numbered passages.
    """

    def __init__(self, stream: TextStream, passages: Sequence[Passage]) -> None:
        self._stream = stream
        self._passages = passages
        self._reader = MarkerReader(passages)
        self._has_ended = False
        self._num_ready = 0  # tokens whose text is decided

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def next_piece(self) -> Piece | None:
        """Return the next piece of thinking or answer; None at the end."""
        while (piece := self._stream.next_piece()) is not None:
            if piece.is_thinking:
                return piece
            if text := self._reader.push(piece.text):
                return Piece(text)
        self._has_ended = True
        rest = self._reader.push("", is_last=True)
        return Piece(rest) if rest else None

    def close(self) -> None:
        """Stop generating."""
        self._stream.close()

    @property
    def completion(self) -> Completion:
        """The model's completion with the remaining text, and with origins that refer to that text."""
        completion = self._stream.completion
        reader = MarkerReader(self._passages)
        text = reader.push(completion.text, is_last=True)
        origins = tuple(_moved(origin, reader.removed) for origin in completion.origins)
        return replace(completion, text=text, origins=origins) if reader.removed else completion

    def tokens_from(self, first: int) -> list[int]:
        """Return the tokens from index ``first`` on, except tokens whose text is still held back."""
        return self._stream.tokens_from(first)[: self._count_ready() - first]

    def origins_from(self, first: int) -> list[Origin]:
        """Return the origins of the tokens that `tokens_from` returns."""
        found = self._stream.origins_from(first)[: self._count_ready() - first]
        return [_moved(origin, self._reader.removed) for origin in found]

    def logprobs_from(self, first: int) -> Sequence[TokenLogprob]:
        """Return the log-probabilities of the tokens that `tokens_from` returns."""
        return self._stream.logprobs_from(first)[: self._count_ready() - first]

    def _count_ready(self) -> int:
        for origin in self._stream.origins_from(self._num_ready):
            if origin.end > self._reader.read and not self._has_ended:
                break
            self._num_ready += 1
        return self._num_ready


def _moved(origin: Origin, removed: Sequence[tuple[int, int]]) -> Origin:
    """Return the origin of a token with offsets in the text without the removed spans."""

    def moved(place: int) -> int:
        return place - sum(min(end, place) - start for start, end in removed if start < place)

    return replace(origin, start=moved(origin.start), end=moved(origin.end)) if removed else origin
