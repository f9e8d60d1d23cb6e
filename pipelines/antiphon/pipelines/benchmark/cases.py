"""What a benchmark decodes: prompts, and the texts that their drafts come from. Runs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.accel.text.messages import Message
from antiphon.pipelines.benchmark.samples import RecordedSample, load_samples
from antiphon.pipelines.progress import Progress

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.retrieval import Passage

DEMO_PASSAGES = 3


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt to decode, as text or as messages, and its references."""

    prompt: str | tuple[Message, ...]
    references: tuple[str, ...]


def load_cases(
    language_model: LanguageModel,
    file: Path | None,
    *,
    task: str | None = None,
    limit: int | None = None,
    passages: int | None = None,
    progress: Progress | None = None,
) -> list[Case]:
    """The prompts of recorded answers; without a file, the demo's questions with what is found for them.

    With ``passages``, each recorded question is asked anew, over the first so many of its references, in the form that
    the model is made for; 0 asks the question alone. The demo's questions get so many passages, by default 3;
    ``progress`` is told of their index where it has to be made.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line of it is not a sample, a number is out of range, or nothing is left to decode.
    """
    if passages is not None and passages < 0:
        raise ValueError(f"passages is {passages}; a question is asked over 0 passages or more.")
    if file is None:
        count = DEMO_PASSAGES if passages is None else passages
        return _demo_cases(language_model, task, limit, count, progress)
    return [case_of(language_model, sample, passages) for sample in load_samples(file, task=task, limit=limit)]


def case_of(language_model: LanguageModel, sample: RecordedSample, passages: int | None = None) -> Case:
    """A sample as it was recorded, or with ``passages`` asked anew over the first so many of its references."""
    if passages is None:
        return Case(sample.prompt, sample.references)
    return asked(language_model, sample.query, _recorded(sample)[:passages])


def asked(language_model: LanguageModel, question: str, passages: Sequence[Passage]) -> Case:
    """A question over passages in the form that the model is made for; over none, the question alone."""
    from antiphon.pipelines.prompt import prompt_format
    from antiphon.pipelines.references import passage_references

    if not passages:
        is_chat = language_model.tokenizer.chat_template is not None
        return Case(({"role": "user", "content": question},) if is_chat else question, ())
    prompt = prompt_format(language_model)(question, passages)
    return Case(prompt.content, prompt.answers or tuple(passage_references(passages)))


def _recorded(sample: RecordedSample) -> list[Passage]:
    from antiphon.retrieval import Passage

    return [Passage.at(f"{sample.id}, reference {number}", 0, text) for number, text in enumerate(sample.references, 1)]


def _demo_cases(
    language_model: LanguageModel,
    task: str | None,
    limit: int | None,
    passages: int,
    progress: Progress | None,
) -> list[Case]:
    from antiphon.pipelines.data.demo import demo_index, demo_questions
    from antiphon.retrieval import Retriever

    if task is not None or (limit is not None and limit < 1):
        raise ValueError(f"task is {task!r} and limit {limit}; the demo's questions have no tasks, and 1 is the least.")
    questions = [each.question for each in demo_questions()][:limit]
    searcher = Retriever.open(demo_index(progress)) if passages else None
    return [asked(language_model, each, searcher.search(each, passages) if searcher else ()) for each in questions]
