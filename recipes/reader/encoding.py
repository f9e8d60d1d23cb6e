"""Tokens of a example: the passages once, and every question a branch behind them. Knows nothing of training.

A branch sees the passages and itself, at the positions it has when it is asked alone: what the model computes for it
is what it computes for the prompt of that question, so a example of eight questions costs its passages once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from antiphon.accel.text.messages import encode_prompt
from antiphon.pipelines.prompt import reader_prompt
from recipes.reader.example import Question, TrainingExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Branch:
    """A question's own tokens: its prompt behind the passages, and the answer with the end of turn."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class PackedExample:
    """A example as the model reads it.

    ``tokens`` and ``positions`` (1, length); ``mask`` (1, 1, length, length), true where a row sees a column;
    ``sources`` (targets,) are the rows whose next token is ``targets`` (targets,): the answers, nothing else.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor


def encode_example(example: TrainingExample, tokenizer: PreTrainedTokenizerBase) -> PackedExample:
    """The example's tree of tokens; see the module."""
    prompts = [
        encode_prompt(reader_prompt(question.text, example.passages).content, tokenizer)
        for question in example.questions
    ]
    shared = _shared(prompts)
    branches = [
        Branch(prompt[shared:], _answer(question, tokenizer))
        for prompt, question in zip(prompts, example.questions, strict=True)
    ]
    return pack_branches(prompts[0][:shared], branches)


def pack_branches(shared: list[int], branches: list[Branch]) -> PackedExample:
    """The branches side by side behind the tokens they share."""
    tokens, positions = list(shared), list(range(len(shared)))
    sources: list[int] = []
    targets: list[int] = []
    spans = []
    for branch in branches:
        start = len(tokens)
        read = branch.prompt + branch.answer[:-1]
        tokens += read
        positions += range(len(shared), len(shared) + len(read))
        spans.append((start, len(tokens)))
        first = start + len(branch.prompt) - 1
        sources += range(first, first + len(branch.answer))
        targets += branch.answer
    mask = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    mask[:, : len(shared)] = True
    for start, end in spans:
        mask[start:end, start:end] = True
    mask = mask.tril()
    return PackedExample(
        torch.tensor([tokens]),
        torch.tensor([positions]),
        mask[None, None],
        torch.tensor(sources),
        torch.tensor(targets),
    )


def _answer(question: Question, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The answer's tokens and the one that ends a turn.

    Raises:
        ValueError: the tokenizer has no such token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"The tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token; an answer needs an end."
        )
    ids: list[int] = tokenizer.encode(question.answer, add_special_tokens=False)
    return [*ids, tokenizer.eos_token_id]


def _shared(prompts: list[list[int]]) -> int:
    """How many first tokens all prompts have in common, with at least one left to each."""
    shortest = min(map(len, prompts)) - 1
    first = prompts[0]
    return next((at for at in range(shortest) if any(prompt[at] != first[at] for prompt in prompts)), shortest)
