"""The reference texts that answers are drafted from: passages and earlier answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.accel.text.messages import PromptInput, TokenizedPrompt
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT_TAIL = 4
"""Number of prompt tokens put before an earlier answer, so that a drafter finds it when the new answer starts.

With fewer tokens, the passages match better there. With more tokens, the earlier answer is
preferred even if it is wrong.
"""


def passage_references(passages: Sequence[Passage]) -> list[str]:
    """Return the texts of passages without duplicates, best first.

    If two references match equally well, drafters prefer the earlier one.
    """
    return list(dict.fromkeys(passage.text for passage in passages))


def answer_references(
    answers: Sequence[str], prompt: PromptInput, tokenizer: PreTrainedTokenizerBase | None
) -> list[str]:
    """Return earlier answers as continuations of a prompt.

    A reference consists of the prompt's last tokens, the answer and the end-of-sequence token.

    Put these references after the passages: if two references match equally well, drafters prefer
    the earlier one.

    Args:
        prompt: the prompt; if it is not tokenized, the answers are returned as texts.
    """
    if not answers:
        return []
    if tokenizer is None or not isinstance(prompt, TokenizedPrompt):
        return list(dict.fromkeys(answers))
    tail = tokenizer.decode(list(prompt.tokens[-PROMPT_TAIL:]))
    return [f"{tail}{answer}{tokenizer.eos_token or ''}" for answer in dict.fromkeys(answers)]
