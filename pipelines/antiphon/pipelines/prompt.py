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
    """Numbered passages and the question as one user turn, for a model that has a chat template."""
    numbered = "\n\n".join(f"[{number}] {_titled(passage)}" for number, passage in enumerate(passages, start=1))
    return Prompt(
        (
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Passages:\n{numbered}\n\nQuestion: {question}"},
        )
    )


def plain_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """The template of "Inference with Reference" (Yang et al. 2023, section 4.1), for a model without a chat template.

    Such a model goes on with questions of its own; the answer ends before one.
    """
    docs = "\n".join(passage.text for passage in passages)
    return Prompt(f"docs:\n{docs}\nquery: {question}\nanswer:", stop=("\ndocs:", "\nquery:"))


def _titled(passage: Passage) -> str:
    title = passage.metadata.get("title")
    return f"{title}\n{passage.text}" if title else passage.text
