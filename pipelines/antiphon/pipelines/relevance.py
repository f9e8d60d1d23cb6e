"""How well a line of a passage answers a question. Knows nothing of language models.

Passages are read token by token: a line is what its tokens are in the context of its passage. It is compared with the
question as a whole, by the cosine of their means, and word for word, by late interaction (Khattab and Zaharia 2020,
ColBERT, section 3.2). Two encoders do so, both all-MiniLM-L6-v2 with an adapter that was trained for it: one reads
passages by themselves, each once; the other reads each behind the question (a cross-encoder; Nogueira and Cho 2019), so
that it sees what is missing. Their mean counts. See the cards in ``models/relevance`` and ``models/cross_relevance``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Protocol

import numpy as np

from antiphon.pipelines.prompt import heading_of
from antiphon.pipelines.quotes import Quote, lines_of
from antiphon.retrieval import MiniLMEmbedder, Passage
from antiphon.retrieval.embed import TokenEmbedder
from antiphon.retrieval.token_memory import TokenMemory
from antiphon.retrieval.vectors import Vectors

RELEVANCE = Path(__file__).parent / "models" / "relevance"
"""The folder of an encoder's adapter, and of what its two comparisons weigh: of the one that reads passages alone."""

CROSS_RELEVANCE = Path(__file__).parent / "models" / "cross_relevance"
"""The same of the encoder that reads passages behind the question."""

SCALE, HEAD = "scale.json", "head.safetensors"

HEADING = 30
"""So many words of the heading above a passage are read with it."""

ASKED = 64
"""So many tokens of a question are read with a passage, so that there is room for this."""

SEPARATOR = "[SEP]"
"""Stands between a question and a passage that are read together."""

_REMEMBERED = 256  # readings: 50 MB at most

Measure = Callable[[Sequence[tuple[Passage, str]]], list[float]]
"""Something that is measured of lines, each with the passage that it stands in, against one question."""


class Relevance(Protocol):
    """What tells how well lines answer a question."""

    def to(self, question: str) -> Measure:
        """How well lines answer this question: nats."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What the two comparisons, each from -1 to 1, weigh together: nats."""

    whole: float
    words: float
    bias: float

    @classmethod
    def load(cls, folder: Path) -> Scale:
        """The one that was learned with an adapter.

        Raises:
            ValueError: the folder has none.
        """
        try:
            found = json.loads((folder / SCALE).read_text(encoding="utf-8"))
            return cls(**{name: float(each) for name, each in found.items()})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{folder / SCALE} does not say what relevance weighs ({error!r}); make an adapter with one: "
                "antiphon reader relevance, or cross-relevance"
            ) from error

    def of(self, question: Vectors, line: Vectors | None) -> float:
        """How well a line answers a question, of shape (tokens, dim) each: nats."""
        if line is None or not len(line) or not len(question):
            return self.bias
        whole = _cosine(question.mean(axis=0), line.mean(axis=0))
        words = float((question @ line.T).max(axis=1).mean())
        return self.whole * whole + self.words * words + self.bias


@dataclass(frozen=True, slots=True)
class Head:
    """What a line looks like that answers, whatever was asked: two vectors of the encoder's dim.

    ``line`` is multiplied with the mean of a line's tokens, ``word`` with the token of which the product is highest.
    """

    line: Vectors
    word: Vectors

    @classmethod
    def load(cls, folder: Path) -> Head:
        """The one that was learned with an adapter.

        Raises:
            ValueError: the folder has none.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            return cls(**load((folder / HEAD).read_bytes()))
        except (OSError, TypeError, SafetensorError) as error:
            raise ValueError(
                f"{folder / HEAD} is no head ({error!r}); make one: antiphon reader cross-relevance"
            ) from error

    def of(self, line: Vectors) -> float:
        """What a line of shape (tokens, dim) adds: nats."""
        return float((line @ self.line).mean() + (line @ self.word).max())


@dataclass(frozen=True, slots=True)
class Reading:
    """A text that the encoder reads at once, heading and lines; of its lines those that can be quoted, by tokens."""

    text: str
    spans: tuple[tuple[str, int, int], ...]


class LineRelevance:
    """Weighs lines of passages against questions. Several threads may ask at once."""

    def __init__(self, encoder: TokenEmbedder, scale: Scale, *, remembered: int = _REMEMBERED) -> None:
        self._encoder, self._scale = encoder, scale
        self._memory = TokenMemory(encoder, remembered)

    def to(self, question: str) -> Measure:
        """How well lines answer this question: log-odds in nats, 0 for as well as not."""
        [asked] = self._encoder.token_vectors([question])

        def relevance(said: Sequence[tuple[Passage, str]]) -> list[float]:
            read = self._lines(list(dict.fromkeys(passage for passage, _ in said)))
            return [self._scale.of(asked.vectors, read[passage].get(line)) for passage, line in said]

        return relevance

    def _lines(self, passages: Sequence[Passage]) -> dict[Passage, dict[str, Vectors]]:
        """For each passage its quotable lines, each with the vectors of its tokens."""
        readings = [(passage, reading) for passage in passages for reading in readings_of(passage, self._encoder)]
        found: dict[Passage, dict[str, Vectors]] = {passage: {} for passage in passages}
        vectors = self._memory.vectors([reading.text for _, reading in readings])
        for (passage, reading), read in zip(readings, vectors, strict=True):
            for line, start, end in reading.spans:
                found[passage].setdefault(line, read[start:end].astype(np.float32))
        return found


class CrossRelevance:
    """Weighs lines of passages against questions, each passage read behind the question. Several threads may ask."""

    def __init__(self, encoder: TokenEmbedder, scale: Scale, head: Head) -> None:
        self._encoder, self._scale, self._head = encoder, scale, head

    def to(self, question: str) -> Measure:
        """How well lines answer this question: log-odds in nats, 0 for as well as not."""
        asked = short_question(question, self._encoder)
        [ids] = self._encoder.token_ids([asked])

        def relevance(said: Sequence[tuple[Passage, str]]) -> list[float]:
            weights = self._weights(asked, len(ids), list(dict.fromkeys(passage for passage, _ in said)))
            return [weights.get(one, self._scale.bias) for one in said]

        return relevance

    def _weights(self, asked: str, count: int, passages: Sequence[Passage]) -> dict[tuple[Passage, str], float]:
        """What each quotable line of the passages weighs; ``count`` tokens are the question's."""
        readings = [(passage, one) for passage in passages for one in readings_of(passage, self._encoder, asked)]
        found: dict[tuple[Passage, str], float] = {}
        read = self._encoder.token_vectors([reading.text for _, reading in readings])
        for (passage, reading), tokens in zip(readings, read, strict=True):
            for text, start, end in reading.spans:
                if len(line := tokens.vectors[start:end]):
                    weight = self._scale.of(tokens.vectors[:count], line) + self._head.of(line)
                    found.setdefault((passage, text), weight)
        return found


def short_question(question: str, encoder: TokenEmbedder) -> str:
    """As much of a question as is read with a passage: words first, and of a single long one its characters."""
    words = question.replace(SEPARATOR, " ").split()[:ASKED]
    while len(words) > 1 and encoder.count_tokens(" ".join(words)) > ASKED:
        words.pop()
    short = " ".join(words)
    while encoder.count_tokens(short) > ASKED:
        short = short[: len(short) // 2]
    return short


def readings_of(
    passage: Passage, encoder: TokenEmbedder, question: str = "", *, without: Collection[str] = ()
) -> Iterator[Reading]:
    """A passage under its heading, in as many texts as the encoder needs; what is too long of a line is not read.

    Each text begins with the ``question``, if there is one. Lines of ``without`` are left out.
    """
    [lines] = lines_of([passage])
    lines = [line for line in lines if not isinstance(line, Quote) or line.sentence not in without]
    heading = " ".join(heading_of(passage).split()[:HEADING])
    above = [text for text in (f"{question} {SEPARATOR}" if question else "", heading) if text]
    texts = [line.sentence if isinstance(line, Quote) else line for line in lines]
    counts = [len(ids) for ids in encoder.token_ids([*above, *texts])]
    first = sum(counts[: len(above)])
    spans: list[tuple[str, int, int]] = []
    at, held = first, [*above]
    for line, text, count in zip(lines, texts, counts[len(above) :], strict=True):
        if at + count > encoder.max_tokens and len(held) > len(above):
            yield Reading("\n".join(held), tuple(spans))
            at, held, spans = first, [*above], []
        if isinstance(line, Quote) and count and at < encoder.max_tokens:
            spans.append((text, at, at + count))
        held.append(text)
        at += count
    yield Reading("\n".join(held), tuple(spans))


def relevance_to(question: str) -> Measure:
    """How well lines answer this question, in nats, by the encoders that ship with the package.

    Raises:
        ImportError: the package of all-MiniLM-L6-v2 is not installed; says the command.
    """
    measures = [relevance.to(question) for relevance in shipped_relevance()]

    def relevance(said: Sequence[tuple[Passage, str]]) -> list[float]:
        return [fmean(each) for each in zip(*(measure(said) for measure in measures), strict=True)]

    return relevance


@cache
def shipped_relevance() -> tuple[LineRelevance, CrossRelevance]:
    """By the encoders that ship with the package, loaded once."""
    alone, behind = (MiniLMEmbedder(adapter=folder) for folder in (RELEVANCE, CROSS_RELEVANCE))
    cross = CrossRelevance(behind, Scale.load(CROSS_RELEVANCE), Head.load(CROSS_RELEVANCE))
    return LineRelevance(alone, Scale.load(RELEVANCE)), cross


def _cosine(one: Vectors, other: Vectors) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
