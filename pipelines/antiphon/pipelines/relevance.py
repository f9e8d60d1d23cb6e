"""The relevance of a line of a passage to a question, by two sentence encoders.

A line is represented by the vectors of its tokens in the context of its passage. It is compared with the question by
the cosine of the mean vectors, and token by token by late interaction (Khattab and Zaharia 2020, ColBERT, section 3.2).
Both encoders are all-MiniLM-L6-v2 with a trained adapter: one encodes each passage once, without the question; the
other encodes it after the question (a cross-encoder; Nogueira and Cho 2019). The relevance is their mean. See the model
cards in ``models/relevance`` and ``models/cross_relevance``.
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
from antiphon.retrieval.embedders.protocol import TokenEmbedder
from antiphon.retrieval.embedders.token_vector_cache import TokenVectorCache
from antiphon.retrieval.vector_index.flat import Vectors

RELEVANCE = Path(__file__).parent / "models" / "relevance"
"""The folder of the adapter and the scale of the encoder that encodes passages alone."""

CROSS_RELEVANCE = Path(__file__).parent / "models" / "cross_relevance"
"""The folder of the adapter, the scale and the head of the cross-encoder."""

SCALE, HEAD = "scale.json", "head.safetensors"

MAX_HEADING_WORDS = 30
"""Maximum number of words of the heading that is encoded with a passage."""

MAX_QUESTION_TOKENS = 64
"""Maximum number of tokens of a question that is encoded with a passage, which needs the rest of the window."""

SEPARATOR = "[SEP]"
"""Separates question and passage in the cross-encoder's input."""

_CACHED_INPUTS = 256  # at most 50 MB

LineScorer = Callable[[Sequence[tuple[Passage, str]]], list[float]]
"""Scores lines, each with its passage, for one question."""


class Relevance(Protocol):
    """A model of the relevance of lines."""

    def to(self, question: str) -> LineScorer:
        """Return the scorer for a question; its scores are log-odds in nats."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The trained weights of the two comparisons, each of which is from -1 to 1, and their bias, in nats."""

    whole: float
    words: float
    bias: float

    @classmethod
    def load(cls, folder: Path) -> Scale:
        """Load the scale of an adapter.

        Raises:
            ValueError: the folder has no valid scale.
        """
        try:
            found = json.loads((folder / SCALE).read_text(encoding="utf-8"))
            return cls(**{name: float(each) for name, each in found.items()})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{folder / SCALE} is not a valid scale ({error!r}); train an adapter with one: "
                "python -m recipes.relevance line, or cross"
            ) from error

    def of(self, question: Vectors, line: Vectors | None) -> float:
        """Return the relevance of a line to a question, in nats.

        Args:
            question: its token vectors, of shape (tokens, dim).
            line: its token vectors, of shape (tokens, dim); None: the score is the bias.
        """
        if line is None or not len(line) or not len(question):
            return self.bias
        whole = _cosine(question.mean(axis=0), line.mean(axis=0))
        words = float((question @ line.T).max(axis=1).mean())
        return self.whole * whole + self.words * words + self.bias


@dataclass(frozen=True, slots=True)
class Head:
    """A trained head that scores lines independently of the question, by two vectors of the encoder's dimension.

    Attributes:
        line: vector that is multiplied by the mean of the line's token vectors.
        word: vector whose largest product with a token vector of the line is added.
    """

    line: Vectors
    word: Vectors

    @classmethod
    def load(cls, folder: Path) -> Head:
        """Load the head of an adapter.

        Raises:
            ValueError: the folder has no valid head.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            return cls(**load((folder / HEAD).read_bytes()))
        except (OSError, TypeError, SafetensorError) as error:
            raise ValueError(
                f"{folder / HEAD} is not a valid head ({error!r}); make one: python -m recipes.relevance cross"
            ) from error

    def of(self, line: Vectors) -> float:
        """Return the score of a line of shape (tokens, dim), in nats."""
        return float((line @ self.line).mean() + (line @ self.word).max())


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """One input of an encoder: its text, and for each quotable line its text and token span."""

    text: str
    spans: tuple[tuple[str, int, int], ...]


class LineRelevance:
    """Relevance by the encoder that encodes passages without the question. Thread-safe.

    Args:
        encoder: the encoder.
        scale: the weights of its comparisons.
        cached_inputs: number of encoded inputs that are kept.
    """

    def __init__(self, encoder: TokenEmbedder, scale: Scale, *, cached_inputs: int = _CACHED_INPUTS) -> None:
        self._encoder, self._scale = encoder, scale
        self._cache = TokenVectorCache(encoder, cached_inputs)

    def to(self, question: str) -> LineScorer:
        """Return the scorer for a question: log-odds in nats, 0 for even odds. See `Relevance.to`."""
        [encoded] = self._encoder.token_vectors([question])

        def relevance(lines: Sequence[tuple[Passage, str]]) -> list[float]:
            vectors = self._lines(list(dict.fromkeys(passage for passage, _ in lines)))
            return [self._scale.of(encoded.vectors, vectors[passage].get(line)) for passage, line in lines]

        return relevance

    def _lines(self, passages: Sequence[Passage]) -> dict[Passage, dict[str, Vectors]]:
        """Return for each passage the token vectors of its quotable lines."""
        inputs = [(passage, each) for passage in passages for each in encoder_inputs(passage, self._encoder)]
        found: dict[Passage, dict[str, Vectors]] = {passage: {} for passage in passages}
        vectors = self._cache.vectors([each.text for _, each in inputs])
        for (passage, each), read in zip(inputs, vectors, strict=True):
            for line, start, end in each.spans:
                found[passage].setdefault(line, read[start:end].astype(np.float32))
        return found


class CrossRelevance:
    """Relevance by the cross-encoder, which encodes each passage after the question. Thread-safe.

    Args:
        encoder: the encoder.
        scale: the weights of its comparisons.
        head: scores lines independently of the question.
    """

    def __init__(self, encoder: TokenEmbedder, scale: Scale, head: Head) -> None:
        self._encoder, self._scale, self._head = encoder, scale, head

    def to(self, question: str) -> LineScorer:
        """Return the scorer for a question: log-odds in nats, 0 for even odds. See `Relevance.to`."""
        question = short_question(question, self._encoder)
        [ids] = self._encoder.token_ids([question])

        def relevance(lines: Sequence[tuple[Passage, str]]) -> list[float]:
            scores = self._scores(question, len(ids), list(dict.fromkeys(passage for passage, _ in lines)))
            return [scores.get(line, self._scale.bias) for line in lines]

        return relevance

    def _scores(self, question: str, count: int, passages: Sequence[Passage]) -> dict[tuple[Passage, str], float]:
        """Return the relevance of each quotable line; the first ``count`` tokens are those of the question."""
        inputs = [(passage, each) for passage in passages for each in encoder_inputs(passage, self._encoder, question)]
        found: dict[tuple[Passage, str], float] = {}
        read = self._encoder.token_vectors([each.text for _, each in inputs])
        for (passage, each), tokens in zip(inputs, read, strict=True):
            for text, start, end in each.spans:
                if len(line := tokens.vectors[start:end]):
                    score = self._scale.of(tokens.vectors[:count], line) + self._head.of(line)
                    found.setdefault((passage, text), score)
        return found


def short_question(question: str, encoder: TokenEmbedder) -> str:
    """Truncate a question to `MAX_QUESTION_TOKENS`: by words, and a single long word by characters.

    Args:
        question: the question.
        encoder: counts tokens.
    """
    words = question.replace(SEPARATOR, " ").split()[:MAX_QUESTION_TOKENS]
    while len(words) > 1 and encoder.count_tokens(" ".join(words)) > MAX_QUESTION_TOKENS:
        words.pop()
    short = " ".join(words)
    while encoder.count_tokens(short) > MAX_QUESTION_TOKENS:
        short = short[: len(short) // 2]
    return short


def encoder_inputs(
    passage: Passage, encoder: TokenEmbedder, question: str = "", *, without: Collection[str] = ()
) -> Iterator[EncoderInput]:
    """Yield the inputs that a passage is encoded as; lines that exceed the encoder's window are truncated.

    Args:
        passage: the passage.
        encoder: its window decides where the passage is split.
        question: if given, each input starts with it.
        without: quotable lines to leave out.
    """
    [lines] = lines_of([passage])
    lines = [line for line in lines if not isinstance(line, Quote) or line.sentence not in without]
    heading = " ".join(heading_of(passage).split()[:MAX_HEADING_WORDS])
    above = [text for text in (f"{question} {SEPARATOR}" if question else "", heading) if text]
    texts = [line.sentence if isinstance(line, Quote) else line for line in lines]
    counts = [len(ids) for ids in encoder.token_ids([*above, *texts])]
    first = sum(counts[: len(above)])
    spans: list[tuple[str, int, int]] = []
    position, texts_held = first, [*above]
    for line, text, count in zip(lines, texts, counts[len(above) :], strict=True):
        if position + count > encoder.max_tokens and len(texts_held) > len(above):
            yield EncoderInput("\n".join(texts_held), tuple(spans))
            position, texts_held, spans = first, [*above], []
        if isinstance(line, Quote) and count and position < encoder.max_tokens:
            spans.append((text, position, position + count))
        texts_held.append(text)
        position += count
    yield EncoderInput("\n".join(texts_held), tuple(spans))


def relevance_scorer(question: str) -> LineScorer:
    """Return the scorer for a question by the bundled encoders: log-odds in nats.

    Raises:
        ImportError: the package of all-MiniLM-L6-v2 is not installed; the message has the command.
    """
    scorers = [relevance.to(question) for relevance in bundled_relevance()]

    def relevance(lines: Sequence[tuple[Passage, str]]) -> list[float]:
        return [fmean(each) for each in zip(*(scorer(lines) for scorer in scorers), strict=True)]

    return relevance


@cache
def bundled_relevance() -> tuple[LineRelevance, CrossRelevance]:
    """Return the bundled encoders, loaded once."""
    line_encoder, cross_encoder = (MiniLMEmbedder(adapter=folder) for folder in (RELEVANCE, CROSS_RELEVANCE))
    cross = CrossRelevance(cross_encoder, Scale.load(CROSS_RELEVANCE), Head.load(CROSS_RELEVANCE))
    return LineRelevance(line_encoder, Scale.load(RELEVANCE)), cross


def _cosine(one: Vectors, other: Vectors) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
