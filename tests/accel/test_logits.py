"""Logits of torch and numpy have the same argmax, top-k tokens and probabilities."""

from math import gcd
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from antiphon.accel.drafting.draft import ROOT, Logits
from antiphon.accel.engines.numpy_logits import NumpyLogits
from antiphon.accel.engines.torch.argmax import argmax, top_k
from antiphon.accel.engines.torch.logits import TorchLogits

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def made(dtype: torch.dtype, vocabulary: int = 1000) -> Tensor:
    """Return logits of five rows; the last one has two equal maxima."""
    tensor = 3 * torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(2))
    tensor[4, [30, 20]] = 20.0
    return tensor.to(dtype)


def array_of(tensor: Tensor) -> NDArray[Any]:
    """Return the tensor as a numpy array; bfloat16 numbers become their bits in uint16."""
    bits = tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    return np.asarray(bits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [9, 1000])
def test_torch_and_numpy_logits_agree(dtype: torch.dtype, vocabulary: int) -> None:
    tensor = made(dtype, max(vocabulary, 40))[:, -vocabulary:].contiguous()
    ours: list[Logits] = [TorchLogits(tensor), TorchLogits(tensor, tensor.argmax(-1)), NumpyLogits(array_of(tensor))]
    for logits in ours:
        assert (len(logits), logits.vocab_size) == (5, vocabulary)
        assert [logits.argmax(row) for row in range(ROOT, 4)] == tensor.float().argmax(-1).tolist()
        assert torch.equal(logits.tensor(), tensor)
        for rows in (range(ROOT, 3), range(1, 3), [2, ROOT, 2], range(0), []):
            tokens, chances = logits.top_k(rows, 4)
            assert tokens.shape == chances.shape == (len(rows), 4)
            assert tokens.dtype == np.int64
            assert chances.dtype == np.float32
            truth = tensor.float()[[row + 1 for row in rows]]
            values, best = truth.topk(4)
            np.testing.assert_array_equal(np.take_along_axis(truth.numpy(), tokens, 1), values.numpy())
            exact = truth.softmax(-1).gather(1, best).numpy()
            np.testing.assert_allclose(chances, exact, rtol=0.25)


VOCABULARIES = st.sampled_from([8, 40, 511, 512, 1000, 32_000, 50_257])
ANY_DTYPE = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SEEDS = st.integers(0, 2**32 - 1)


def random_logits(vocabulary: int, dtype: torch.dtype, seed: int) -> Tensor:
    return 3 * torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(vocabulary=VOCABULARIES, dtype=ANY_DTYPE, seed=SEEDS, lower=st.sampled_from([0, 4, 9, 100]))
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


@given(vocabulary=VOCABULARIES, dtype=ANY_DTYPE, seed=SEEDS)
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
