"""The best tokens of logits, found in strips: the same as by sorting everything."""

import pytest
import torch
from torch import Tensor

from antiphon.accel.best import argmax, best

VOCABULARIES = pytest.mark.parametrize("vocabulary", [8, 40, 511, 512, 1000, 32_000, 50_257])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random_logits(vocabulary: int, dtype: torch.dtype) -> Tensor:
    return 3 * torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).to(dtype)


@VOCABULARIES
@DTYPES
def test_the_best_tokens_are_those_of_a_full_sort(vocabulary: int, dtype: torch.dtype) -> None:
    logits = random_logits(vocabulary, dtype)
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
