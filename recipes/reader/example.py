"""Training examples: passages, and questions about them with the sentences that answer."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.pipelines.prompt import REFUSAL
from antiphon.pipelines.quotes import Quote
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class Question:
    """A question.

    Attributes:
        text: The question.
        quotes: Quotes that answer it, in order; empty if the passages do not answer it.
        kind: How the question was made.
    """

    text: str
    quotes: tuple[Quote, ...] = ()
    kind: str = ""

    @property
    def answer(self) -> str:
        """Expected output: one quote per line after the number of its passage, or the refusal."""
        return "\n".join(quote.line for quote in self.quotes) or REFUSAL


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """Passages in prompt order, and independent questions about them."""

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
