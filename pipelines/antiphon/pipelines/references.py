"""Builds the references that drafts are made from, out of passages and earlier answers. Searches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.accel.text.messages import CountedPrompt, TokenizedPrompt
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPENING = 4
"""How many of the last tokens of a prompt stand before an earlier answer, for it to be found where an answer begins.

They are its weight: with fewer the passages outweigh it, with more it outweighs them where it is wrong too.
"""


def passage_references(passages: Sequence[Passage]) -> list[str]:
    """The texts that the answer may quote, best passage first, each text once.

    The order is what a drafter goes by where two references match equally well.
    """
    return list(dict.fromkeys(passage.text for passage in passages))


def answer_references(
    answers: Sequence[str], prompt: TokenizedPrompt | CountedPrompt, tokenizer: PreTrainedTokenizerBase | None
) -> list[str]:
    """Earlier answers as the turns that they would be after this prompt: its end, the answer, the end of sequence.

    They come after the passages, which a drafter then prefers where both match equally well. Where only a server knows
    the prompt's tokens, they are the answers alone.
    """
    if tokenizer is None or isinstance(prompt, CountedPrompt):
        return list(dict.fromkeys(answers))
    opening = tokenizer.decode(list(prompt.tokens[-OPENING:]))
    return [f"{opening}{answer}{tokenizer.eos_token or ''}" for answer in dict.fromkeys(answers)]
