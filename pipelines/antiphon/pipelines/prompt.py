"""Question and passages to a prompt, in the form that the model was made for. Knows nothing of drafting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.accel.messages import Message
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM = "You answer questions with one or two sentences quoted from the passages."


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is given, as raw text or as messages, and the strings that end its answer."""

    content: str | tuple[Message, ...]
    stop: tuple[str, ...] = ()


PromptFormat = Callable[[str, Sequence[Passage]], Prompt]
"""Makes the prompt of a question and its passages, best first."""


def prompt_format(tokenizer: PreTrainedTokenizerBase) -> PromptFormat:
    """Messages for a model whose tokenizer has a chat template, the plain text for one that has none."""
    return plain_prompt if tokenizer.chat_template is None else chat_prompt


def chat_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """The question, the numbered passages and the question again as one user turn, for a model with a chat template.

    A small model quotes more, and more to the point, when it knows the question while it reads.
    """
    numbered = "\n\n".join(f"[{number}] {_titled(passage)}" for number, passage in enumerate(passages, start=1))
    turn = f"Question: {question}\n\nPassages:\n{numbered}\n\nQuestion: {question}"
    return Prompt(({"role": "system", "content": SYSTEM}, {"role": "user", "content": turn}))


def plain_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """The template of "Inference with Reference" (Yang et al. 2023, section 4.1), for a model without a chat template.

    Such a model goes on with questions of its own; the answer ends before one.
    """
    docs = "\n".join(passage.text for passage in passages)
    return Prompt(f"docs:\n{docs}\nquery: {question}\nanswer:", stop=("\ndocs:", "\nquery:"))


def _titled(passage: Passage) -> str:
    """The passage under its heading, unless it begins with it."""
    heading = passage.metadata.get("title", "").rpartition(" > ")[2]
    is_shown = not heading or passage.text.partition("\n")[0].strip() == heading
    return passage.text if is_shown else f"{heading}\n{passage.text}"
