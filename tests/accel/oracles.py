"""Reference results for decoded texts: logits of plain forward passes, and comparisons with them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import ROOT, Draft, Tokens, path_to
from tests.accel.adversarial_drafters import RecordedStep

ATOL, RTOL = 2e-4, 1e-4
"""Tolerances for float32 logits: 100 times the rounding of batched rows, and 1/1000 of the error of any fault."""


KINKED = StepCost({64: {1: 1.0, 2: 0.8, 4: 0.9, 5: 1.6, 8: 1.7, 9: 3.0, 64: 30.0}})
"""Costs that rise in steps. One row costs more than two, so plain steps are padded; large drafts are never worth it."""


@contextmanager
def forward_rows(model: Any) -> Iterator[list[int]]:
    """Collect the number of rows of every forward pass in this context."""
    rows: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, given: rows.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        yield rows
    finally:
        hook.remove()


def plain_logits(model: Any, tokens: Sequence[int], padding: int = 0) -> Tensor:
    """Return logits after every token, shape (tokens, vocabulary), of one forward pass without a cache or a draft."""
    return _plain_logits(model, [tokens], padding)[0]


def _plain_logits(model: Any, texts: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Return the logits of several texts, shape (texts, tokens, vocabulary); undefined after the end of a text."""
    width = max(map(len, texts))
    batch = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=model.device)
    arguments: dict[str, Tensor] = {}
    if padding:
        positions = (torch.arange(width, device=model.device) - padding).expand(len(texts), -1)
        arguments = {"attention_mask": (positions >= 0).long(), "position_ids": positions.clamp(min=0)}
    with torch.no_grad():
        logits: Tensor = model(batch, **arguments).logits.float()
    return logits.cpu()


def expect_plain_logits(
    model: Any, text: Sequence[int], records: Sequence[RecordedStep], *, every_row: int = 3, padding: int = 0
) -> None:
    """Assert that logits of the root and kept rows, and of all rows in the first steps, equal plain forward passes."""
    truth = plain_logits(model, text, padding)
    for index, record in enumerate(records):
        rows = [ROOT, *record.accepted.path]
        expect_close(record.logits[[row + 1 for row in rows]], truth[record.length - 1 :][: len(rows)])
        if index < every_row:
            _expect_every_row(model, text[: record.length], record, padding)


def _expect_every_row(model: Any, context: Sequence[int], record: RecordedStep, padding: int) -> None:
    """Compare the logits of every path of the draft, accepted or not, with one batch of plain forward passes."""
    draft = record.draft
    said = [row for row in range(len(draft)) if draft.tokens[row] >= 0]  # without masks (negative ids)
    leaves = sorted(set(said) - {draft.parents[row] for row in said})
    if not leaves:
        return
    paths = [path_to(draft, leaf) for leaf in leaves]
    texts = [[*context, *(draft.tokens[row] for row in path)] for path in paths]
    for path, truth in zip(paths, _plain_logits(model, texts, padding), strict=True):
        expect_close(record.logits[[row + 1 for row in path]], truth[len(context) :][: len(path)])


def expect_close(logits: Tensor, truth: Tensor) -> None:
    """Assert that logits differ by rounding only."""
    torch.testing.assert_close(logits.float().cpu(), truth, atol=ATOL, rtol=RTOL)


def spelled(draft: Draft, row: int) -> list[int]:
    """Return the tokens below the root on the path to a row."""
    tokens: list[int] = []
    while row != ROOT:
        tokens.insert(0, draft.tokens[row])
        row = draft.parents[row]
    return tokens


def longest_path(draft: Draft, truth: Tokens) -> tuple[int, ...]:
    """Return the longest path of a draft that agrees with the given tokens."""
    path: list[int] = []
    row = -1
    for token in truth:
        row = draft.children.get(row, {}).get(token, -1)
        if row < 0:
            break
        path.append(row)
    return tuple(path)
