"""TrainingExample: some passages, and questions about them with the sentences that answer. Knows nothing of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.pipelines.prompt import REFUSAL
from antiphon.pipelines.quotes import Quote
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and the quotes that answer it, in order; none where the passages do not say."""

    text: str
    quotes: tuple[Quote, ...] = ()
    kind: str = ""

    @property
    def answer(self) -> str:
        """What the reader says: a quote a line, each after the number of its passage."""
        return "\n".join(quote.line for quote in self.quotes) or REFUSAL


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """Passages in the order in which they are read, and independent questions about them."""

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
