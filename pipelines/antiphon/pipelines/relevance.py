"""Compute the relevance of the lines of passages to a question with two sentence encoders.

A line is represented by the vectors of its tokens in the context of its passage. It is compared
with the question in two ways: by the cosine of the mean vectors, and by late interaction of the
token vectors (Khattab and Zaharia 2020, ColBERT, section 3.2). Both encoders are all-MiniLM-L6-v2
with a trained adapter. The line encoder encodes each passage once, without the question. The
cross-encoder encodes question and passage together (Nogueira and Cho 2019). See the model cards in
``models``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from threading import Lock

import numpy as np

from antiphon.pipelines.quotes import headings_of, lines_of
from antiphon.retrieval import MiniLMEmbedder, Passage
from antiphon.retrieval.embedders.protocol import TokenEmbedder
from antiphon.retrieval.embedders.token_vector_cache import TokenVectorCache
from antiphon.retrieval.vector_index.flat import Vectors

RELEVANCE = Path(__file__).parent / "models" / "relevance"
"""The folder of the line encoder's adapter and head."""

CROSS_RELEVANCE = Path(__file__).parent / "models" / "cross_relevance"
"""The folder of the cross-encoder's adapter and head."""

HEAD = "head.safetensors"

MAX_QUESTION_TOKENS = 64
"""Maximum number of tokens of the question in an encoder input; the passage needs the rest of the window."""

_CACHED_INPUTS = 256  # number of inputs of the line encoder whose vectors are kept; at most 50 MB
_SEPARATOR = "[SEP]"  # between question and passage in the cross-encoder's input
_HEADING_WORDS = 30  # maximum number of words of the heading that is encoded with a passage

_LOADING = Lock()

LineScores = list[list[float]]
"""For each passage, the relevance of its quotable lines: log-odds in nats."""


@dataclass(frozen=True, slots=True)
class Head:
    """The trained weights that turn the token vectors of a line and of the question into a score in nats.

    Attributes:
        scale: weights of the two comparisons (each between -1 and 1) and the bias; shape (3,).
        line: weights of the mean of the line's token vectors; shape (dim,). This term does not depend on the
            question.
        word: weights of a single token vector, shape (dim,). Only the line's token vector with the
            largest product counts.
    """

    scale: Vectors
    line: Vectors
    word: Vectors

    @classmethod
    def load(cls, folder: Path) -> Head:
        """Load the head of an adapter."""
        from safetensors.numpy import load_file

        return cls(**load_file(folder / HEAD))

    def score(self, question: Vectors, line: Vectors) -> float:
        """Return the relevance of a line to a question. Both are given as token vectors, shape (tokens, dim)."""
        if not len(line) or not len(question):
            return float(self.scale[2])
        means = question.mean(axis=0), line.mean(axis=0)
        whole = means[0] @ means[1] / (np.linalg.norm(means[0]) * np.linalg.norm(means[1]))
        words = (question @ line.T).max(axis=1).mean()
        return float(self.scale @ [whole, words, 1.0] + (line @ self.line).mean() + (line @ self.word).max())


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """One input of an encoder: its text, and the text and token span of each quotable line in it."""

    text: str
    spans: tuple[tuple[str, int, int], ...]


class LineEncoder:
    """Scores lines with one encoder, which encodes a passage alone or, if ``is_cross``, after the question.

    Several threads may use it at the same time.
    """

    def __init__(self, encoder: TokenEmbedder, head: Head, *, is_cross: bool) -> None:
        self._encoder, self._head, self._is_cross = encoder, head, is_cross
        self._cache = TokenVectorCache(encoder, 0 if is_cross else _CACHED_INPUTS)

    def scores(self, question: str, passages: Sequence[Passage]) -> LineScores:
        """Return, for each passage, the relevance of its quotable lines to a question."""
        question = short_question(question, self._encoder)
        count = len(self._encoder.token_ids([question])[0])
        asked = None if self._is_cross else self._encoder.token_vectors([question])[0].vectors
        inputs = [
            (place, each)
            for place, passage in enumerate(passages)
            for each in encoder_inputs(passage, self._encoder, question if self._is_cross else "")
        ]
        scores: LineScores = [[] for _ in passages]
        for (place, each), vectors in zip(inputs, self._cache.vectors([each.text for _, each in inputs]), strict=True):
            tokens = vectors.astype(np.float32)
            compared = tokens[:count] if asked is None else asked
            scores[place] += [self._head.score(compared, tokens[start:end]) for _, start, end in each.spans]
        return scores


def short_question(question: str, encoder: TokenEmbedder) -> str:
    """Truncate a question to `MAX_QUESTION_TOKENS`."""
    short = " ".join(question.replace(_SEPARATOR, " ").split())
    while encoder.count_tokens(short) > MAX_QUESTION_TOKENS:
        short = short[: len(short) * 7 // 8]
    return short


def encoder_inputs(
    passage: Passage, encoder: TokenEmbedder, question: str = "", *, without: Collection[str] = ()
) -> Iterator[EncoderInput]:
    """Yield the encoder inputs of a passage: several if the passage exceeds the encoder's window.

    Args:
        question: if given, each input starts with it.
        without: quotable lines to leave out.
    """
    lines = [line for line in lines_of([passage])[0] if not (line.is_quotable and line.sentence in without)]
    heading = " ".join("".join(headings_of(passage)[-1:]).split()[:_HEADING_WORDS])
    above = [text for text in (f"{question} {_SEPARATOR}" if question else "", heading) if text]
    counts = [len(ids) for ids in encoder.token_ids([*above, *(line.sentence for line in lines)])]
    first = sum(counts[: len(above)])
    position, held, spans = first, [*above], list[tuple[str, int, int]]()
    for line, count in zip(lines, counts[len(above) :], strict=True):
        if position + count > encoder.max_tokens and len(held) > len(above):
            yield EncoderInput("\n".join(held), tuple(spans))
            position, held, spans = first, [*above], []
        if line.is_quotable:
            spans.append((line.sentence, position, position + count))
        held.append(line.sentence)
        position += count
    yield EncoderInput("\n".join(held), tuple(spans))


def line_scores(question: str, passages: Sequence[Passage]) -> LineScores:
    """Return the mean of the scores of both bundled encoders."""
    by_encoder = [encoder.scores(question, passages) for encoder in bundled_encoders()]
    return [[fmean(each) for each in zip(*own, strict=True)] for own in zip(*by_encoder, strict=True)]


def bundled_encoders() -> list[LineEncoder]:
    """Return the line encoder and the cross-encoder. The first thread that calls this function loads them."""
    with _LOADING:
        return _load_encoders()


@cache
def _load_encoders() -> list[LineEncoder]:
    folders = {RELEVANCE: False, CROSS_RELEVANCE: True}
    with ThreadPoolExecutor(len(folders)) as pool:  # OpenVINO compiles both at the same time
        embedders = pool.map(lambda folder: MiniLMEmbedder(adapter=folder), folders)
    return [
        LineEncoder(embedder, Head.load(folder), is_cross=is_cross)
        for embedder, (folder, is_cross) in zip(embedders, folders.items(), strict=True)
    ]
