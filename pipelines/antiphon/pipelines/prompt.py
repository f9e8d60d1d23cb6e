"""Prompt formats: how a question and its passages become messages or text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.accel import TextModel
from antiphon.accel.text.messages import Message
from antiphon.pipelines.markers import MARKER
from antiphon.pipelines.quotes import headings_of, lines_of
from antiphon.retrieval import Passage

REFUSAL = "The passages do not say."
"""The answer of every model if no passage contains the answer."""

SYSTEM = (
    "Answer the question from the numbered passages alone, as fully as the question needs, and in its language. After "
    "each statement put the number of the passage that supports it in square brackets, such as [1] or [2][3]. If the "
    f"passages do not contain the answer, say only: {REFUSAL}"
)
"""The instructions of `chat_prompt`: the same for every question, so that prompts share this prefix."""

SMALL_SYSTEM = "You answer questions with one or two sentences quoted from the passages."

READER_SYSTEM = "You answer with sentences quoted from the passages, each with the number of its passage."

_HEADINGS = 3  # maximum number of headings, the innermost ones, that are shown above a passage

SMALL = 400_000_000
"""Models with fewer parameters do not follow the instructions of `chat_prompt`."""

_AROUND = rf"(?:{MARKER}|[\s\"'“”„‟«»‘’*_>])*"  # markers, quotation marks and emphasis
_REFUSAL = re.compile(rf"{_AROUND}(?:\Z|{re.escape(REFUSAL[:-1])}{_AROUND}(?:\.|\Z))", re.IGNORECASE)


def is_refusal(text: str) -> bool:
    """Return whether an answer is empty or starts with `REFUSAL`, with or without markers and quotation marks."""
    return _REFUSAL.match(text) is not None


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a question and its passages.

    Attributes:
        content: text, or messages.
        stop: strings that end the answer.
        answers: texts that an answer may repeat, in the spelling of the prompt format. They serve
            as references for drafting.
        has_markers: whether the prompt numbers the passages from 1, so that the answer can name
            them by `markers`.
    """

    content: str | tuple[Message, ...]
    stop: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    has_markers: bool = False


PromptFormat = Callable[[str, Sequence[Passage]], Prompt]
"""Makes the prompt of a question and its passages, which are given best first."""


def prompt_format(language_model: TextModel) -> PromptFormat:
    """Return the prompt format named in a model's configuration; else a default for the model's template and size.

    Raises:
        ValueError: the configuration names an unknown format.
    """
    named = language_model.prompt_format
    if named is None:
        if follows_instructions(language_model):
            return chat_prompt
        return small_model_prompt if language_model.takes_messages else plain_prompt
    if named != "reader":
        raise ValueError(
            f"The model {language_model.name!r} asks for the prompt format {named!r}; only 'reader' is known. "
            "Give Rag a prompt of your own: Rag(..., prompt=...)."
        )
    return reader_prompt


def follows_instructions(language_model: TextModel) -> bool:
    """Return whether a model gets `chat_prompt`: it takes messages, has no own format and at least `SMALL` parameters.

    A model of unknown size counts as large.
    """
    size = language_model.num_parameters
    return language_model.prompt_format is None and language_model.takes_messages and (size is None or size >= SMALL)


def chat_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """Return messages for a model that follows instructions: `SYSTEM`, the numbered passages, then the question.

    Prompts of the same passages share a prefix up to the question.

    Args:
        question: the question.
        passages: the passages, best first.
    """
    turn = f"Passages:\n\n{_numbered(passages)}\n\nQuestion: {question}"
    return Prompt(({"role": "system", "content": SYSTEM}, {"role": "user", "content": turn}), has_markers=True)


ONLY_DOCUMENTS = (
    "The model {!r} answers questions from documents alone: use Rag, in LangChain ChatAntiphon.with_retriever, in "
    "LlamaIndex AntiphonQueryEngine or AntiphonChatEngine; for other texts choose smollm2 or an instruct model."
)


def check_prompt(language_model: TextModel, prompt: object) -> None:
    """If the model supports only its own prompt format, refuse a prompt in any other format.

    Raises:
        RuntimeError: the model only answers questions from documents, and the prompt is something else. (LlamaIndex
            would turn a ValueError into an empty answer.)
    """
    if language_model.prompt_format is not None and READER_SYSTEM not in str(prompt):  # `str` contains the messages
        raise RuntimeError(ONLY_DOCUMENTS.format(language_model.name))


TAKES_NO_PROMPT = (
    "The model {!r} takes no prompt of yours: lines of the passages are selected for it, and its prompt, if any, "
    "is the one that it was trained for. Choose another model, such as an instruct model, or leave out the prompt."
)


def template_prompt(template: str, language_model: TextModel) -> PromptFormat:
    """Return the prompt format that fills in ``{passages}`` and ``{question}`` in a template.

    The filled template is one user message; for a model without a chat template it is the whole prompt.

    Raises:
        ValueError: a placeholder is missing, or the model supports only its own prompt format.
    """
    check_template(template)
    if language_model.prompt_format is not None:
        raise ValueError(TAKES_NO_PROMPT.format(language_model.name))

    def fill(question: str, passages: Sequence[Passage]) -> Prompt:
        values = {"{passages}": _numbered(passages), "{question}": question}
        text = _PLACES.sub(lambda place: values[place[0]], template)
        return Prompt(({"role": "user", "content": text},) if language_model.takes_messages else text, has_markers=True)

    return fill


def check_template(template: str) -> str:
    """Return the prompt template unchanged if it has both placeholders.

    Raises:
        ValueError: ``{passages}`` or ``{question}`` is missing.
    """
    if missing := [place for place in ("{passages}", "{question}") if place not in template]:
        raise ValueError(
            f"The prompt has no {' and no '.join(missing)}; write {{passages}} where the numbered passages stand, and "
            "{question} where the question stands."
        )
    return template


_PLACES = re.compile(r"\{passages\}|\{question\}")


def small_model_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """Return messages for a small chat model: the question, the numbered passages, and the question again.

    If the question also precedes the passages, small models quote more text, and more relevant
    text. The answer ends after the first paragraph, because small models then begin to repeat
    themselves.

    Args:
        question: the question.
        passages: the passages, best first.
    """
    turn = f"Question: {question}\n\nPassages:\n{_numbered(passages)}\n\nQuestion: {question}"
    return Prompt(({"role": "system", "content": SMALL_SYSTEM}, {"role": "user", "content": turn}), stop=("\n\n",))


def reader_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """Return the prompt of the bundled model `reader`: numbered sentences of the passages, then the question.

    An answer consists of numbered sentences. Text that cannot be quoted, such as headings and
    links, has no number.
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

    The answer ends before the next question, because base models continue with invented questions.

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
    """Return the passage, preceded by the column names if it begins inside a table."""
    return f"| {passage.column_names} |\n{passage.text}" if passage.column_names else passage.text


def _file(passage: Passage) -> str:
    return passage.source.replace("\\", "/").rpartition("/")[2]
