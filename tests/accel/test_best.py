"""The best tokens of logits, found in strips: the same as by sorting everything."""

import pytest
import torch
from torch import Tensor

from antiphon.accel.best import argmax, best

VOCABULARIES = pytest.mark.parametrize("vocabulary", [8, 40, 511, 512, 1000, 32_000, 50_257])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def random_logits(vocabulary: int, dtype: torch.dtype) -> Tensor:
    return 3 * torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).to(dtype)


@VOCABULARIES
@DTYPES
@pytest.mark.parametrize("lower", [0, 4, 100])
def test_the_best_tokens_are_those_of_a_full_sort(vocabulary: int, dtype: torch.dtype, lower: int) -> None:
    """Also where some or all of them are negative."""
    logits = random_logits(vocabulary, dtype) - lower
    tokens, chances = best(logits, 8)
    expected = logits.topk(8).values
    assert torch.equal(logits.gather(1, tokens), expected)
    assert all(len(set(row)) == 8 for row in tokens.tolist())
    exact = logits.float().softmax(-1).gather(1, tokens)
    assert (chances >= exact - 1e-6).all()
    torch.testing.assert_close(chances / chances[:, :1], exact / exact[:, :1])


@VOCABULARIES
@DTYPES
def test_the_argmax_is_the_first_of_the_largest(vocabulary: int, dtype: torch.dtype) -> None:
    logits = random_logits(vocabulary, dtype)
    assert torch.equal(argmax(logits), logits.argmax(-1))
    ties = torch.zeros(2, vocabulary, dtype=dtype)
    ties[1, vocabulary // 3 :] = 1
    assert argmax(ties).tolist() == [0, vocabulary // 3]
    assert argmax(logits[:0]).tolist() == []


@VOCABULARIES
@DTYPES
def test_the_argmax_of_rows_that_are_zero_negative_infinite_or_no_numbers(vocabulary: int, dtype: torch.dtype) -> None:
    logits = random_logits(vocabulary, dtype)
    zero = logits.clamp(max=0)
    zero[:, 1], zero[:, 2] = -0.0, 0.0
    last, nan = vocabulary - 2, torch.tensor(torch.nan)
    infinite = logits.clone()
    infinite[:, last] = torch.inf
    broken = [logits.index_fill(1, torch.tensor([3, last]), value.item()) for value in (nan, -nan)]
    signed = logits.clone()
    signed[:, last] = torch.tensor(-torch.nan, dtype=dtype)
    signed[:, 3] = (torch.zeros((), dtype=dtype) / 0).abs().neg()
    barred = torch.full_like(logits, -torch.inf)
    for rows in (
        zero,
        logits - 100,
        infinite,
        *broken,
        signed,
        barred,
        logits.index_fill(1, torch.arange(4), -torch.inf),
    ):
        assert torch.equal(argmax(rows), rows.argmax(-1))
