"""Builds the prompt from question and passages, in the format of the model. Knows nothing of drafting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.accel.text.messages import Message
from antiphon.pipelines.quotes import Quote, lines_of
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from antiphon.accel import TextModel

SYSTEM = "You answer questions with one or two sentences quoted from the passages."

READER_SYSTEM = "You answer with sentences quoted from the passages, each with the number of its passage."

_TRAIL = 3  # headings above a passage that the reader sees

DECLINED = "The passages do not say."
"""What the reader answers where no passage does."""


def is_refusal(text: str) -> bool:
    """Whether an answer says that the passages do not say, or nothing."""
    return text.strip().startswith(DECLINED) or not text.strip()


GUIDELINES = """\
Respond to the queries according to the presented documents. The query and documents are given in a json string. \
Here are some guidelines for your response:
1. The response should be informative, visual, logical and actionable.
2. The response should be positive, interesting, entertaining and engaging.
3. The response should avoid being vague, controversial or off-topic.
4. The logics and reasoning in the response should be rigorous, intelligent and defensible.
5. The response can provide additional relevant details to respond thoroughly and comprehensively to cover multiple \
aspects in depth.
6. The presented documents may be incomplete or irrelevant to the query. The response shouldn't make assumptions on \
presented documents beyond what's presented.
7. If the presented documents do not contain sufficient information to answer the query completely, the response \
should use only facts in the presented documents and should not add any information by itself."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is given, as raw text or as messages, and the strings that end its answer.

    ``answers`` are texts in the very form in which an answer to this prompt would repeat them.
    """

    content: str | tuple[Message, ...]
    stop: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


PromptFormat = Callable[[str, Sequence[Passage]], Prompt]
"""Makes the prompt of a question and its passages, best first."""


def check_text(question: str) -> None:
    """Refuse a question with bytes in it that are no text: no tokenizer reads them.

    Raises:
        ValueError: it holds bytes that are not UTF-8, as a terminal of another encoding hands them over.
    """
    try:
        question.encode()
    except UnicodeEncodeError as error:
        wrong = question[error.start : error.end].encode(errors="surrogateescape")
        raise ValueError(
            f"The question holds bytes that are not UTF-8 ({wrong!r} after {error.start} characters); type it in "
            "UTF-8, or check the encoding of your terminal."
        ) from None


def prompt_format(language_model: TextModel) -> PromptFormat:
    """What the model's configuration names; else messages if its tokenizer has a chat template, plain text if not.

    Raises:
        ValueError: the configuration names a form that is not known.
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
    """The question, the numbered passages and the question again as one user turn, for a model with a chat template.

    A small model quotes more, and more to the point, when it knows the question while it reads.
    """
    turn = f"Question: {question}\n\nPassages:\n{_numbered(passages)}\n\nQuestion: {question}"
    return Prompt(({"role": "system", "content": SYSTEM}, {"role": "user", "content": turn}))


def reader_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """The passages sentence by sentence, each behind the number of its passage, and then the question.

    An answer is some of these lines. What cannot be quoted, such as headings and listings, stands without a number.
    Questions of the same passages share all but their last tokens.
    """
    headings = [_trail(passage) or _file(passage) for passage in passages]
    lines = [
        [line for line in own if _words(line) not in _headings(passage)]
        for passage, own in zip(passages, lines_of(passages), strict=True)
    ]
    shown = "\n\n".join("\n".join([heading, *map(_shown, own)]) for heading, own in zip(headings, lines, strict=True))
    turn = f"Passages:\n\n{shown}\n\nQuestion: {question}"
    messages = ({"role": "system", "content": READER_SYSTEM}, {"role": "user", "content": turn})
    answers = ("\n".join(line.line for line in own if isinstance(line, Quote)) for own in lines)
    return Prompt(messages, answers=(DECLINED, *answers))


def _words(line: Quote | str) -> str:
    return line.lstrip("# ") if isinstance(line, str) else line.sentence


def _shown(line: Quote | str) -> str:
    return line if isinstance(line, str) else line.line


def plain_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """The template of "Inference with Reference" (Yang et al. 2023, Figure 6), for a model without a chat template.

    Such a model goes on with questions of its own; the answer ends before one.
    """
    docs = "\n".join(passage.text for passage in passages)
    return Prompt(f"docs:\n{docs}\nquery: {question}\nanswer:", stop=_NEXT)


def guided_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """The template with guidelines that LLMA's recorded answers were written to (Yang et al. 2023, Figure 5)."""
    docs = "\n".join(passage.text for passage in passages)
    return Prompt(f"{GUIDELINES}\n\ndocs: [\n{docs}]\nquery: {question}\nresponse:", stop=_NEXT)


_NEXT = ("\ndocs:", "\nquery:")


def _numbered(passages: Sequence[Passage]) -> str:
    return "\n\n".join(f"[{number}] {_titled(passage)}" for number, passage in enumerate(passages, start=1))


def _titled(passage: Passage) -> str:
    """The passage under its heading, unless it begins with it."""
    heading = heading_of(passage)
    is_shown = not heading or passage.text.partition("\n")[0].strip() == heading
    return passage.text if is_shown else f"{heading}\n{passage.text}"


def heading_of(passage: Passage) -> str:
    """The innermost heading above the passage, where there is one."""
    return passage.metadata.get("title", "").rpartition(" > ")[2]


def _headings(passage: Passage) -> list[str]:
    """The headings above the passage, outermost first."""
    return passage.metadata.get("title", "").split(" > ")


def _trail(passage: Passage) -> str:
    """The innermost headings above the passage: what it is about, as a line."""
    return " > ".join(_headings(passage)[-_TRAIL:])


def _file(passage: Passage) -> str:
    return passage.source.replace("\\", "/").rpartition("/")[2]
