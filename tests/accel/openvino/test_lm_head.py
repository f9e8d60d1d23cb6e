"""The LM head in 8 bits finds the candidates; the most likely token is always that of the model's own weights."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import ROOT
from tests.families.table import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.numpy_logits import NumpyLogits
from antiphon.accel.engines.openvino.lm_head import HeadLogits, LMHead, PassLogits
from antiphon.accel.engines.openvino.quantized_head import (
    INTEGER_UNITS,
    ApproximateLogits,
    HeadWeights,
    QuantizedHead,
)
from antiphon.accel.processor import processor_flags
from tests.accel.openvino.builders import engine_of, expect_plain, model_of, step, text_of, tree_of

pytestmark = pytest.mark.slow

VOCAB, HIDDEN = 1000, 80
SIZES = st.sampled_from([HIDDEN, 192, 256])
"""Hidden sizes: one is no multiple of a group in which hidden values are quantized, the others of either size."""

UNITS = st.sampled_from([False, True] if INTEGER_UNITS in processor_flags() else [False])
"""Whether the head uses integer units, if this processor has them."""


def error_bounds(head: LMHead, approximate: ApproximateLogits, hidden: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the largest possible errors of approximate logits, shape (rows, vocab), of hidden states."""
    factors = np.stack([np.linalg.norm(hidden.astype(np.float64), axis=1), approximate.errors], 1)
    bounds: NDArray[np.float64] = factors @ cast(QuantizedHead, head._quantized).norms
    return bounds


def logits_of(approximate: ApproximateLogits) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = approximate.products * approximate.scales[:, None].astype(np.float32)
    return logits


def bits(matrix: torch.Tensor) -> NDArray[np.uint16]:
    return matrix.bfloat16().view(torch.uint16).numpy()


def head_of(matrix: torch.Tensor, precision: str = "f32", has_integer_units: bool | None = None) -> LMHead:
    weights = HeadWeights(bits(matrix), "bf16")
    return LMHead(weights, precision=precision, threads=1, has_integer_units=has_integer_units)


def matrix_with_near_ties(seed: int, scale: float, hidden: int = HIDDEN) -> torch.Tensor:
    """Return a head with rows that differ in their last bit from others, equal rows, an outlier, and a row of zeros."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn((VOCAB, hidden), generator=generator) * scale
    matrix[500:700] = matrix[300:500] * (1 + 2**-7 * torch.randint(-1, 2, (200, hidden), generator=generator))
    matrix[700:800] = matrix[200:300]
    matrix[800, 3] = 50 * scale
    matrix[801] = 0
    return matrix.bfloat16().float()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    size=SIZES,
    scale=st.sampled_from([1e-4, 0.02, 30.0]),
    precision=st.sampled_from(["f32", "bf16"]),
    units=UNITS,
)
def test_the_most_likely_token_is_that_of_the_exact_weights(
    seed: int, size: int, scale: float, precision: str, units: bool
) -> None:
    matrix = matrix_with_near_ties(seed, scale, size)
    head = head_of(matrix, precision, units)
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn((6, size), generator=generator)
    hidden[1] = matrix[seed % VOCAB] / scale  # a certain token, with near ties
    hidden[2, ::7] *= 300  # outliers
    hidden[3] = 0
    source = PassLogits(head, hidden.numpy())
    read = torch.from_numpy(source.hidden)
    logits = HeadLogits(source, range(6))
    exact = matrix.double() @ read.double().T
    assert [logits.argmax(row) for row in range(-1, 5)] == exact.argmax(0).tolist()


def test_products_of_freed_weights_are_noticed_and_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrix_with_near_ties(0, 0.02)
    head = QuantizedHead(HeadWeights(bits(matrix), "bf16"), threads=1, has_integer_units=False)
    hidden = np.random.default_rng(0).standard_normal((3, HIDDEN)).astype(np.float32)
    expected = logits_of(head.approximate(hidden))
    zeros = QuantizedHead(HeadWeights(bits(torch.zeros(VOCAB, HIDDEN)), "bf16"), threads=1, has_integer_units=False)
    monkeypatch.setattr(head, "_request", zeros._request)
    assert np.array_equal(logits_of(head.approximate(hidden)), expected)
    assert np.array_equal(logits_of(head.approximate(hidden)), expected)


@pytest.mark.parametrize("units", [False, True] if INTEGER_UNITS in processor_flags() else [False])
def test_products_are_right_for_every_number_of_rows(units: bool) -> None:
    matrix = matrix_with_near_ties(0, 0.02, 256)
    head = head_of(matrix, has_integer_units=units)
    hidden = np.random.default_rng(0).standard_normal((130, 256)).astype(np.float32)
    exact = hidden @ matrix.numpy().T
    for rows in (*range(1, 66), 96, 128, 130):
        approximate = head.approximate_logits(hidden[:rows])
        errors = np.abs(logits_of(approximate) - exact[:rows])
        assert (errors <= error_bounds(head, approximate, hidden[:rows])).all(), rows


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("count", [1, HIDDEN])
def test_hidden_states_without_a_number_give_the_token_of_the_exact_head(value: float, count: int) -> None:
    head = head_of(matrix_with_near_ties(0, 0.02))
    hidden = np.ones((1, HIDDEN), dtype=np.float32)
    hidden[0, :count] = value
    logits = HeadLogits(PassLogits(head, hidden), range(1))
    assert logits.argmax(ROOT) == int(logits.tensor()[0].numpy().argmax())


def test_several_likely_tokens_are_those_of_the_scaled_products() -> None:
    head = head_of(matrix_with_near_ties(0, 1.0))
    hidden = np.random.default_rng(0).standard_normal((6, HIDDEN)).astype(np.float32)
    logits = HeadLogits(PassLogits(head, hidden), range(1, 6))
    tokens, chances = NumpyLogits(logits_of(head.approximate_logits(hidden))).top_k([1, 2, 3], 4)
    for rows in ([0, 1, 2], range(3)):
        found = logits.top_k(rows, 4)
        assert found[0].tolist() == tokens.tolist()
        assert np.allclose(found[1], chances, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "gpt2"])
def test_engines_with_this_head_return_the_logits_of_a_plain_forward_pass(family: str) -> None:
    model = model_of(family)
    engine = engine_of(model)
    assert engine.graph.lm_head is not None
    text, draft = text_of(30), tree_of(text_of(5, seed=2))
    logits = step(engine, engine.sequence(), text, draft)
    best = [logits.argmax(row) for row in range(-1, len(draft))]
    expect_plain(model, text, draft, logits)
    assert best == logits.tensor().argmax(-1).tolist()


def test_a_model_whose_logits_are_scaled_keeps_its_head_in_the_graph() -> None:
    model: Any = tiny_model("granite")
    engine = engine_of(model)
    assert engine.graph.lm_head is None
    assert step(engine, engine.sequence(), text_of(9)).vocab_size == model.config.vocab_size


def test_the_exact_head_is_used_if_the_approximate_one_leaves_too_many_candidates() -> None:
    head = head_of(torch.ones((3000, HIDDEN)))
    hidden = np.ones((1, HIDDEN), dtype=np.float32)
    for _ in range(40):
        logits = HeadLogits(PassLogits(head, hidden), range(1))
        assert logits.argmax(ROOT) == 0
    assert head.is_vague
    assert logits.source._exact is not None
