"""What every decoded text is held against: the true text and its plain logits. Knows nothing of how it was decoded."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from antiphon.accel.drafting.draft import ROOT, Draft, Tokens
from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.testing.adversary import Sight

ATOL, RTOL = 2e-4, 1e-4
"""How far float32 logits may be apart: a hundred times what feeding rows together costs, a thousandth of any fault."""


KINKED = StepCost({64: {1: 1.0, 2: 0.8, 4: 0.9, 5: 1.6, 8: 1.7, 9: 3.0, 64: 30.0}})
"""A plain step is dearer than one of two rows, so it is padded; further rows come in steps, and many never pay."""


def plain_logits(model: Any, tokens: Sequence[int], padding: int = 0) -> Tensor:
    """Logits after every token, of shape (tokens, vocab): one forward without a cache or a draft."""
    arguments: dict[str, Tensor] = {}
    if padding:
        positions = torch.arange(len(tokens)) - padding
        arguments = {"attention_mask": (positions >= 0).long()[None], "position_ids": positions.clamp(min=0)[None]}
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(tokens)]), **arguments).logits[0].float()
    return logits


def expect_plain_logits(
    model: Any, text: Sequence[int], sights: Sequence[Sight], *, every_row: int = 3, padding: int = 0
) -> None:
    """Logits of the root and of every kept row equal a plain forward's; in the first steps those of all rows do."""
    truth = plain_logits(model, text, padding)
    for index, sight in enumerate(sights):
        rows = [ROOT, *sight.accepted.path]
        expected = truth[sight.length - 1 :][: len(rows)]
        torch.testing.assert_close(sight.logits[[row + 1 for row in rows]].float(), expected, atol=ATOL, rtol=RTOL)
        for row in range(len(sight.draft)) if index < every_row else ():
            if sight.draft.tokens[row] < 0:
                continue  # a mask stands for no token
            tokens = [*text[: sight.length], *spelled(sight.draft, row)]
            expected = plain_logits(model, tokens, padding)[-1]
            torch.testing.assert_close(sight.logits[row + 1].float(), expected, atol=ATOL, rtol=RTOL)


def spelled(draft: Draft, row: int) -> list[int]:
    """The tokens from the root down to a row."""
    tokens: list[int] = []
    while row != ROOT:
        tokens.insert(0, draft.tokens[row])
        row = draft.parents[row]
    return tokens


def longest_path(draft: Draft, truth: Tokens) -> tuple[int, ...]:
    """The rows of a draft that spell the truth from the root on, as far as they go."""
    path: list[int] = []
    row = -1
    for token in truth:
        row = draft.children.get(row, {}).get(token, -1)
        if row < 0:
            break
        path.append(row)
    return tuple(path)
