"""Logits of torch and numpy have the same argmax, top-k tokens and probabilities."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.accel.drafting.draft import ROOT, Logits
from antiphon.accel.engines.numpy_logits import NumpyLogits
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
