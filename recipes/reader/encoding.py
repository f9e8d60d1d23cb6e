"""Encodes a training example as a token tree: the passages once, and each question as a branch.

A branch attends to the passages and itself, at the positions of a prompt with this question alone, so the model
computes the same logits as for that prompt. An example with eight questions processes its passages once.
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
    """Tokens of one question: the prompt after the passages, and the answer with the end of turn."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class PackedExample:
    """A packed training example.

    Attributes:
        tokens: Token ids, of shape (1, length).
        positions: Positions, of shape (1, length).
        mask: True where a row attends to a column, of shape (1, 1, length, length).
        sources: Rows whose next token is a target, of shape (targets,).
        targets: Answer tokens, of shape (targets,).
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
    """Pack branches after their shared tokens.

    Args:
        shared: Tokens of the passages.
        branches: Tokens of each question.
    """
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
    """Return the answer's tokens and the end-of-sequence token.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"The tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token; an answer needs an end."
        )
    ids: list[int] = tokenizer.encode(question.answer, add_special_tokens=False)
    return [*ids, tokenizer.eos_token_id]


def _shared(prompts: list[list[int]]) -> int:
    """Return the length of the common prefix, leaving at least one token to each prompt."""
    shortest = min(map(len, prompts)) - 1
    first = prompts[0]
    return next((at for at in range(shortest) if any(prompt[at] != first[at] for prompt in prompts)), shortest)
