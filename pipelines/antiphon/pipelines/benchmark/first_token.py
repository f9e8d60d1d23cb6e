"""Time to the first piece of an answer: about passages that are new to the reader, and about those it has read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.rag import Rag, Searcher
    from antiphon.retrieval import Passage

REMEMBERED = 32_768
"""So many tokens of passages are kept; more than the passages of one question have."""


@dataclass(frozen=True, slots=True)
class FirstPiece:
    """Seconds to the first piece of the answer to one question, its passages unread and read before."""

    question: str
    unread: float
    read: float


def measure_first_pieces(
    questions: Sequence[str], retriever: Searcher, language_model: LanguageModel, k: int, **generation: Any
) -> list[FirstPiece]:
    """Ask about each question's passages: the question itself, then the next one, about the very same passages."""
    from antiphon.pipelines.rag import Rag

    measured = []
    for question, another in zip(questions, [*questions[1:], *questions[:1]], strict=True):
        given = _Given(tuple(retriever.search(question, k)))
        rag = Rag(given, language_model, k=k, remembered_tokens=REMEMBERED)
        _first_piece(rag, another, generation)
        read = _first_piece(rag, question, generation)
        unread = _first_piece(Rag(given, language_model, k=k), question, generation)
        measured.append(FirstPiece(question, unread, read))
    return measured


def first_piece_figures(measured: Sequence[FirstPiece]) -> dict[str, float]:
    """Medians, in milliseconds, and how many times sooner the first piece comes."""
    unread, read = (median(getattr(one, name) for one in measured) for name in ("unread", "read"))
    return {"unread_ms": round(1e3 * unread, 1), "read_ms": round(1e3 * read, 1), "sooner": round(unread / read, 2)}


def _first_piece(rag: Rag, question: str, generation: dict[str, Any]) -> float:
    started = perf_counter()
    stream = rag.stream(question, **generation)
    next(stream, "")
    seconds = perf_counter() - started
    stream.close()
    return seconds


@dataclass(frozen=True, slots=True)
class _Given:
    """A search that finds what it was given, at no cost."""

    passages: tuple[Passage, ...]

    def search(self, question: str, k: int = 5) -> list[Passage]:
        return list(self.passages[:k])
