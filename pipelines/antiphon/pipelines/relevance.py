"""How well a line of a passage answers a question. Knows nothing of language models.

Passages are read token by token, each once: a line is what its tokens are in the context of its passage. It is compared
with the question as a whole, by the cosine of their means, and word for word, by late interaction (Khattab and Zaharia
2020, ColBERT, section 3.2). The encoder is all-MiniLM-L6-v2 with an adapter that was trained for this; see the card in
``models/relevance``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from antiphon.pipelines.prompt import heading_of
from antiphon.pipelines.quotes import Quote, lines_of
from antiphon.retrieval import MiniLMEmbedder, Passage
from antiphon.retrieval.embed import TokenEmbedder
from antiphon.retrieval.token_memory import TokenMemory
from antiphon.retrieval.vectors import Vectors

RELEVANCE = Path(__file__).parent / "models" / "relevance"
"""The folder of the encoder's adapter, and of what its two comparisons weigh."""

SCALE = "scale.json"

HEADING = 30
"""So many words of the heading above a passage are read with it."""

_REMEMBERED = 256  # readings: 50 MB at most

Measure = Callable[[Sequence[tuple[Passage, str]]], list[float]]
"""Something that is measured of lines, each with the passage that it stands in, against one question."""


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
                f"{folder / SCALE} does not say what relevance weighs ({error!r}); make one: antiphon reader relevance"
            ) from error


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
            return [self._of(asked.vectors, read[passage].get(line)) for passage, line in said]

        return relevance

    def _of(self, question: Vectors, line: Vectors | None) -> float:
        if line is None or not len(line) or not len(question):
            return self._scale.bias
        whole = _cosine(question.mean(axis=0), line.mean(axis=0))
        words = float((question @ line.T).max(axis=1).mean())
        return self._scale.whole * whole + self._scale.words * words + self._scale.bias

    def _lines(self, passages: Sequence[Passage]) -> dict[Passage, dict[str, Vectors]]:
        """For each passage its quotable lines, each with the vectors of its tokens."""
        readings = [(passage, reading) for passage in passages for reading in readings_of(passage, self._encoder)]
        found: dict[Passage, dict[str, Vectors]] = {passage: {} for passage in passages}
        vectors = self._memory.vectors([reading.text for _, reading in readings])
        for (passage, reading), read in zip(readings, vectors, strict=True):
            for line, start, end in reading.spans:
                found[passage].setdefault(line, read[start:end].astype(np.float32))
        return found


def readings_of(passage: Passage, encoder: TokenEmbedder) -> Iterator[Reading]:
    """A passage under its heading, in as many texts as the encoder needs; what is too long of a line is not read."""
    [lines] = lines_of([passage])
    above = [" ".join(words[:HEADING])] if (words := heading_of(passage).split()) else []
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
    """How well lines answer this question, in nats, by the encoder that ships with the package.

    Raises:
        ImportError: the package of all-MiniLM-L6-v2 is not installed; says the command.
    """
    return shipped_relevance().to(question)


@cache
def shipped_relevance() -> LineRelevance:
    """By the encoder that ships with the package, loaded once."""
    return LineRelevance(MiniLMEmbedder(adapter=RELEVANCE), Scale.load(RELEVANCE))


def _cosine(one: Vectors, other: Vectors) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
