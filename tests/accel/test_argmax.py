"""Argmax and top-k of logits equal those of torch."""

from math import gcd

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antiphon.accel.engines.torch.argmax import argmax, top_k

VOCABULARIES = st.sampled_from([8, 40, 511, 512, 1000, 32_000, 50_257])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SEEDS = st.integers(0, 2**32 - 1)


def random_logits(vocabulary: int, dtype: torch.dtype, seed: int) -> Tensor:
    return 3 * torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(vocabulary=VOCABULARIES, dtype=DTYPES, seed=SEEDS, lower=st.sampled_from([0, 4, 9, 100]))
def test_top_k_returns_the_tokens_of_a_full_sort(vocabulary: int, dtype: torch.dtype, seed: int, lower: int) -> None:
    """``lower`` is subtracted from the logits, so that some or all of them become negative."""
    logits = random_logits(vocabulary, dtype, seed) - lower
    tokens, chances = top_k(logits, 8)
    expected = logits.topk(8).values
    assert torch.equal(logits.gather(1, tokens), expected)
    assert all(len(set(row)) == 8 for row in tokens.tolist())
    exact = logits.float().softmax(-1).gather(1, tokens)
    strips = gcd(vocabulary, 64) if vocabulary >= 512 else 1
    shares = logits.reshape(5, strips, -1).amax(1).float().softmax(-1).amax(-1)
    assert (chances >= exact - 1e-6).all()
    torch.testing.assert_close(chances[:, 0], shares)
    torch.testing.assert_close(chances / chances[:, :1], exact / exact[:, :1])


@given(vocabulary=VOCABULARIES, dtype=DTYPES, seed=SEEDS)
def test_argmax_of_rows_with_zeros_negatives_infinities_or_nan(vocabulary: int, dtype: torch.dtype, seed: int) -> None:
    logits = random_logits(vocabulary, dtype, seed)
    zero = logits.clamp(max=0)
    zero[:, 1], zero[:, 2] = -0.0, 0.0
    last = vocabulary - 2
    infinite = logits.clone()
    infinite[:, last] = torch.inf
    broken = logits.index_fill(1, torch.tensor([3, last]), torch.nan)
    barred = torch.full_like(logits, -torch.inf)
    for rows in (zero, logits - 100, infinite, broken, barred, logits.index_fill(1, torch.arange(4), -torch.inf)):
        assert torch.equal(argmax(rows), rows.argmax(-1))


@pytest.mark.parametrize(("dtype", "infinity"), [(torch.bfloat16, 0x7F80), (torch.float16, 0x7C00)])
@pytest.mark.parametrize("sign", [0, -0x8000])
def test_argmax_is_the_first_nan_whatever_its_bits(dtype: torch.dtype, infinity: int, sign: int) -> None:
    logits = random_logits(1000, dtype, seed=1)
    bits = logits.view(torch.int16)
    bits[:, 600], bits[:, 700] = sign + infinity + 1, sign + 0x7FFF
    bits[1, 500] = infinity
    assert logits.isnan().sum() == 10
    assert argmax(logits).tolist() == logits.argmax(-1).tolist() == [600] * 5
