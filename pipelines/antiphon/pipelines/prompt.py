"""Prompt formats: how a question and its passages become messages or text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.accel.text.messages import Message
from antiphon.pipelines.quotes import headings_of, lines_of
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from antiphon.accel import TextModel

SYSTEM = "You answer questions with one or two sentences quoted from the passages."

READER_SYSTEM = "You answer with sentences quoted from the passages, each with the number of its passage."

_HEADINGS = 3  # innermost headings shown above a passage

REFUSAL = "The passages do not say."
"""The answer of `extractive` and `reader` if no passage contains the answer."""


def is_refusal(text: str) -> bool:
    """Return whether an answer is a refusal or empty."""
    return text.strip().startswith(REFUSAL) or not text.strip()


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a question and its passages.

    Attributes:
        content: text, or messages.
        stop: strings that end the answer.
        answers: texts that an answer may repeat, exactly as the format writes them; drafted from.
    """

    content: str | tuple[Message, ...]
    stop: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


PromptFormat = Callable[[str, Sequence[Passage]], Prompt]
"""Makes the prompt of a question and its passages, which are best first."""


def prompt_format(language_model: TextModel) -> PromptFormat:
    """Return the prompt format that a model's configuration names, else a default, which depends on its chat template.

    Raises:
        ValueError: the configuration names an unknown format.
    """
    named = language_model.prompt_format
    if named is None:
        return chat_prompt if language_model.takes_messages else plain_prompt
    if named != "reader":
        raise ValueError(
            f"The model {language_model.name!r} asks for the prompt format {named!r}; only 'reader' is known. "
            "Give Rag a prompt of your own: Rag(..., prompt=...)."
        )
    return reader_prompt


def chat_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """Return messages for a model with a chat template: the question, the numbered passages, and the question again.

    With the question before the passages, small models quote more, and more relevant text.

    Args:
        question: the question.
        passages: the passages, best first.
    """
    turn = f"Question: {question}\n\nPassages:\n{_numbered(passages)}\n\nQuestion: {question}"
    return Prompt(({"role": "system", "content": SYSTEM}, {"role": "user", "content": turn}))


def reader_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """Return the prompt of the bundled model `reader`: numbered sentences of the passages, then the question.

    An answer consists of these lines. Text that cannot be quoted, such as headings and listings, has no number.
    Prompts of the same passages share a prefix up to the question.

    Args:
        question: the question.
        passages: the passages, best first.
    """
    headings = [" > ".join(headings_of(passage)[-_HEADINGS:]) or _file(passage) for passage in passages]
    lines = lines_of(passages)
    texts = ([heading, *(line.line for line in own)] for heading, own in zip(headings, lines, strict=True))
    shown = "\n\n".join(map("\n".join, texts))
    turn = f"Passages:\n\n{shown}\n\nQuestion: {question}"
    messages = ({"role": "system", "content": READER_SYSTEM}, {"role": "user", "content": turn})
    answers = ("\n".join(line.line for line in own if line.is_quotable) for own in lines)
    return Prompt(messages, answers=(REFUSAL, *answers))


def plain_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """Return the template of "Inference with Reference" (Yang et al. 2023, Figure 6), for base models.

    Base models continue with invented questions, so the answer stops before one.

    Args:
        question: the question.
        passages: the passages, best first.
    """
    docs = "\n".join(map(_with_columns, passages))
    return Prompt(f"docs:\n{docs}\nquery: {question}\nanswer:", stop=_NEXT_QUESTION)


_NEXT_QUESTION = ("\ndocs:", "\nquery:")


def _numbered(passages: Sequence[Passage]) -> str:
    return "\n\n".join(f"[{number}] {_titled(passage)}" for number, passage in enumerate(passages, start=1))


def _titled(passage: Passage) -> str:
    """Return the passage with its heading before it, unless the passage already starts with the heading."""
    heading = "".join(headings_of(passage)[-1:])
    has_heading = not heading or passage.text.partition("\n")[0].strip() == heading
    text = _with_columns(passage)
    return text if has_heading else f"{heading}\n{text}"


def _with_columns(passage: Passage) -> str:
    """Return the passage below the names of its columns, if it begins below the header of a table."""
    return f"| {passage.column_names} |\n{passage.text}" if passage.column_names else passage.text


def _file(passage: Passage) -> str:
    return passage.source.replace("\\", "/").rpartition("/")[2]
