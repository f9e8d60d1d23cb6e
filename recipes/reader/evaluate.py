"""Evaluation: what a model answers to questions whose quotes are known. Knows nothing of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from antiphon.accel import LanguageModel
from antiphon.pipelines.answer import Answer
from antiphon.pipelines.prompt import REFUSAL
from antiphon.pipelines.quotes import Quote, quotable_lines, quotes_of
from antiphon.pipelines.rag import Rag
from antiphon.retrieval import Passage
from recipes.reader.example import Question, TrainingExample
from recipes.reader.multi_passage import MultiPassageExamples
from recipes.reader.written_questions import WrittenQuestion


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One answer beside what was wanted."""

    question: Question
    answer: Answer

    @property
    def is_ended(self) -> bool:
        """Whether the model ended by itself and said no quote twice."""
        quotes = quotes_of(self.answer.text)
        return self.answer.finish_reason == "stop" and len(set(quotes)) == len(quotes)

    @property
    def is_refusal(self) -> bool:
        """Whether the model said that the passages do not say."""
        return self.answer.text.strip() == REFUSAL

    @property
    def is_verbatim(self) -> bool:
        """Whether there are quotes, and each is a whole sentence of the passage of its number, word for word."""
        quotes = set(quotes_of(self.answer.text))
        return bool(quotes) and quotes <= set(chain(*quotable_lines(self.answer.passages)))

    @property
    def is_right_passage(self) -> bool:
        """Whether the first quote names the passage of the wanted one."""
        quotes = quotes_of(self.answer.text)
        return bool(quotes) and quotes[0].number in {quote.number for quote in self.question.quotes}

    @property
    def is_right_sentence(self) -> bool:
        """Whether one of the quotes is one of the wanted, word for word."""
        return bool(set(quotes_of(self.answer.text)) & set(self.question.quotes))


@dataclass(frozen=True, slots=True)
class ReaderFigures:
    """Shares of 1 over many questions; ``answerable`` are those that a passage answers, ``unanswerable`` the others.

    ``verbatim``, ``right_passage`` and ``right_sentence`` are shares of the answerable questions that were not
    declined. Steps without the prefill.
    """

    answerable: int
    unanswerable: int
    verbatim: float
    right_passage: float
    right_sentence: float
    declined: float
    wrongly_declined: float
    unended: float
    tokens_per_step: float
    seconds: float


def reader_figures(judged: Sequence[JudgedAnswer]) -> ReaderFigures:
    """The shares of many judged answers.

    Raises:
        ValueError: there is none.
    """
    if not judged:
        raise ValueError("There is no answer to judge; ask at least one question.")
    wanted = [one for one in judged if one.question.quotes]
    others = [one for one in judged if not one.question.quotes]
    answered = [one for one in wanted if not one.is_refusal]
    steps = [one.answer.steps for one in judged]
    return ReaderFigures(
        answerable=len(wanted),
        unanswerable=len(others),
        verbatim=_share(one.is_verbatim for one in answered),
        right_passage=_share(one.is_right_passage for one in answered),
        right_sentence=_share(one.is_right_sentence for one in answered),
        declined=_share(one.is_refusal for one in others),
        wrongly_declined=_share(one.is_refusal for one in wanted),
        unended=1 - _share(one.is_ended for one in judged),
        tokens_per_step=(sum(one.tokens for one in steps) - len(steps)) / max(1, sum(one.steps - 1 for one in steps)),
        seconds=sum(one.seconds for one in steps),
    )


def generated_questions(
    passages: Sequence[Passage], count: int, *, seed: int
) -> Iterator[tuple[Question, TrainingExample]]:
    """``count`` questions by rule about passages, at most two of each example, with the example they belong to."""
    examples = MultiPassageExamples(passages, seed=seed)
    pairs = ((question, example) for example in _each(examples) for question in example.questions[:2])
    for _, pair in zip(range(count), pairs, strict=False):
        yield pair


def written_questions(
    passages: Sequence[Passage], written: Sequence[WrittenQuestion], *, seed: int
) -> Iterator[tuple[Question, TrainingExample]]:
    """Every written question about these passages, each with neighbours of its passage."""
    examples = MultiPassageExamples(passages, written, seed=seed)
    for number in range(len(examples.anchors)):
        example = examples.about(number)
        for question in example.questions:
            if question.kind.startswith("written"):
                yield question, example


def judge(
    language_model: LanguageModel,
    questions: Iterable[tuple[Question, TrainingExample]],
    *,
    report: Callable[[JudgedAnswer], None] = lambda judged: None,
    **generation: Any,
) -> list[JudgedAnswer]:
    """Ask every question with its example's passages; ``generation`` goes to `Rag.ask`."""
    judged = []
    for question, example in questions:
        rag = Rag(_Given(example.passages), language_model, k=len(example.passages))
        answer = rag.ask(question.text, **generation)
        one = JudgedAnswer(_renumbered(question, example, answer), answer)
        judged.append(one)
        report(one)
    return judged


def _renumbered(question: Question, example: TrainingExample, answer: Answer) -> Question:
    """The question with its quotes under the numbers that their passages have in the answer."""
    places = [answer.passages.index(example.passages[quote.number - 1]) for quote in question.quotes]
    quotes = (Quote(place + 1, quote.sentence) for place, quote in zip(places, question.quotes, strict=True))
    return replace(question, quotes=tuple(quotes))


@dataclass(frozen=True, slots=True)
class _Given:
    """A search that finds what it was given."""

    passages: tuple[Passage, ...]

    def search(self, question: str, k: int = 5) -> list[Passage]:
        return list(self.passages[:k])


def _each(examples: MultiPassageExamples) -> Iterator[TrainingExample]:
    number = 0
    while True:
        yield examples.example(number)
        number += 1


def _share(answers: Iterable[bool]) -> float:
    values = list(answers)
    return sum(values) / len(values) if values else 0.0
