"""Multiply hidden states by an LM head's weights, both in 8 bits, and compute bounds of the error. See `lm_head`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.engines.numpy_logits import as_float32
from antiphon.accel.engines.openvino.runtime import core
from antiphon.accel.engines.openvino.weights import TemporaryWeights
from antiphon.accel.processor import processor_flags

if TYPE_CHECKING:
    import openvino

LARGEST = 127
"""Largest quantized value. Weights and hidden values are quantized symmetrically."""

GROUP_SIZES = (128, 64)
"""Numbers of hidden values that share a scale if OpenVINO quantizes them, the fastest first."""

SLACK = 1.05
"""Factor for the error of hidden values that OpenVINO rounds, because it also rounds the scales."""

MAX_ERROR_RATIO = 1.8
"""Integer units are used if their error is at most this many times the error without them."""

ROUNDING = 1e-5
"""Relative error of a sum of products in float32; sums of 16,384 random products are 1e-6 apart."""

BLOCK = 512
"""Number of rows of the head that are converted at a time: they fit into the processor's cache."""

PROBED_ROWS = (1, 8)
"""Numbers of rows to test whether OpenVINO packs the weights. A single row has other kernels."""

SEEN = 512
"""Number of products of a row that are checked: kernels that read freed weights return zeros only."""

INTEGER_UNITS = "amx_int8"
"""Instruction set that multiplies matrices of 8-bit integers."""


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The head's weights in the model's own precision.

    Attributes:
        values: Shape (vocab, hidden). 16-bit values are stored as their bits, in uint16. The memory
            must stay valid while the object is used.
        kind: Element type, "bf16", "f16" or "f32".
    """

    values: NDArray[Any]
    kind: str

    def rows(self, tokens: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        """Return the rows of some tokens in float32, shape (tokens, hidden)."""
        rows = self.values[tokens]
        return as_float32(rows.view(np.float16) if self.kind == "f16" else rows)


@dataclass(frozen=True, slots=True)
class ApproximateLogits:
    """Logits from quantized weights and hidden states.

    Attributes:
        products: Shape (rows, vocab); a row's logits are its products times its scale.
        scales: Factor of each row, shape (rows,).
        errors: Bound on the norm of each row's quantization error, shape (rows,).
    """

    products: NDArray[np.float32]
    scales: NDArray[np.float64]
    errors: NDArray[np.float64]


class QuantizedHead:
    """The head's weights in 8 bits, multiplied by hidden states in 8 bits.

    Each row of weights has its own scale. Hidden states are rounded here, so that their error is
    known. With integer units, they are rounded to multiples of one scale per row. Without integer
    units, there is one scale per group of hidden values, so that OpenVINO's kernel, which quantizes
    groups, adds no further error.

    Args:
        has_integer_units: Whether to use integer units, see `prefers_integer_units`.

    Attributes:
        norms: Norm of each row's quantization error, and norm of each quantized row; shape (2, vocab).
        largest_norms: Maximum of each kind of norm, shape (2,).
    """

    def __init__(self, weights: HeadWeights, *, threads: int, has_integer_units: bool) -> None:
        self.vocab_size, self.hidden_size = (int(size) for size in weights.values.shape)
        self.has_integer_units = has_integer_units
        self._weights, self._threads = weights, threads
        self._memory = TemporaryWeights()
        self._request = self._compile()
        packed = self._probe()
        self._memory.release()
        self._is_released = True
        if packed != self._probe():
            self._restore()

    def _compile(self) -> Any:
        """Quantize the weights; return an inference request that multiplies by them."""
        quantized = self._memory.array(self._weights.values.shape, np.int8)
        scales, self.norms = _quantize(self._weights, quantized, self._threads)
        self.largest_norms: NDArray[np.float64] = self.norms.max(1).astype(np.float64)
        model = _product(quantized, scales, is_integer=self.has_integer_units)
        group = None if self.has_integer_units else _group_size(self.hidden_size)
        request = compile_head(model, "f32", self._threads, group=group)
        self._keeps_rounded = group is not None and _keeps_rounded(request, quantized, scales)
        return request

    def _restore(self) -> None:
        """Compile the product again, and do not free the quantized weights: this CPU's kernels read them in place."""
        self._request = self._compile()
        self._is_released = False

    def _products(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the products of quantized hidden states, (rows, vocab)."""
        products = run_head(self._request, hidden, self.vocab_size)
        if self._is_released and not products[:, :SEEN].any() and hidden.any():  # these kernels read freed weights
            self._restore()
            return run_head(self._request, hidden, self.vocab_size)
        return products

    def _probe(self) -> list[float]:
        """Return the sum of absolute products for each number of rows in `PROBED_ROWS`.

        The first run with each number of rows packs the weights.
        """
        sums: list[float] = []
        for rows in PROBED_ROWS:
            hidden = np.arange(rows * self.hidden_size, dtype=np.float32).reshape(rows, -1) % LARGEST
            sums.append(float(np.abs(run_head(self._request, hidden, self.vocab_size)).sum(dtype=np.float64)))
        return sums

    def approximate(self, hidden: NDArray[np.float32]) -> ApproximateLogits:
        """Return approximate logits of hidden states, which have the shape (rows, hidden)."""
        if self.has_integer_units:
            integers, scales, errors = _to_integers(hidden, self.hidden_size)
            return ApproximateLogits(self._products(integers[:, 0].astype(np.float32)), scales[:, 0, 0], errors)
        rounded, errors = _round_groups(hidden) if self._keeps_rounded else (hidden, _largest_errors(hidden))
        return ApproximateLogits(self._products(rounded), np.ones(len(hidden)), errors)


def prefers_integer_units(hidden: NDArray[np.float32]) -> bool:
    """Return whether this CPU has integer units and using them is worthwhile.

    Integer units need one scale per row instead of one per group. They are worthwhile if this does
    not make the error much larger. In many models a few hidden values are much larger than all
    other values. One scale per row then rounds the smaller values coarsely, and exact logits must
    be computed for many candidates.

    Args:
        hidden: Hidden states of some tokens, shape (rows, hidden).
    """
    if INTEGER_UNITS not in processor_flags():
        return False
    return bool(_to_integers(hidden, hidden.shape[1])[2].mean() <= MAX_ERROR_RATIO * _round_groups(hidden)[1].mean())


def _to_integers(
    hidden: NDArray[np.float32], group: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return hidden states as integers, the scale of each group, and the norm of each row's error.

    Args:
        hidden: The hidden states, shape (rows, hidden).
        group: Number of hidden values that share a scale. The scale is the largest absolute value
            of the group, divided by `LARGEST`.

    Returns:
        Arrays of the shapes (rows, groups, group), (rows, groups, 1) and (rows,).
    """
    groups = _in_groups(hidden, group)
    scales = np.abs(groups).max(2, keepdims=True, initial=np.finfo(np.float32).tiny) / LARGEST
    with np.errstate(invalid="ignore"):  # rows with an infinite value have no finite logits
        integers = np.rint(groups / scales)
        errors = np.linalg.norm(groups - integers * scales, axis=(1, 2))
    return integers, scales, errors + ROUNDING * np.linalg.norm(groups, axis=(1, 2))


def _round_groups(hidden: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Round hidden states so that OpenVINO's kernel adds no further error; return them and each row's error norm."""
    rows, size = hidden.shape
    integers, scales, errors = _to_integers(hidden, _group_size(size))
    with np.errstate(invalid="ignore"):
        rounded = (integers * scales).reshape(rows, -1)[:, :size]
    return rounded.astype(np.float32), errors


def _largest_errors(hidden: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return an upper bound for the norm of the error of OpenVINO's kernel in each row of hidden states."""
    groups = _in_groups(hidden, _group_size(hidden.shape[1]))
    half_steps = np.abs(groups).max(2) / LARGEST / 2
    errors: NDArray[np.float64] = SLACK * np.sqrt(groups.shape[2] * (half_steps**2).sum(1))
    errors += ROUNDING * np.linalg.norm(groups, axis=(1, 2))
    return errors


def _in_groups(hidden: NDArray[np.float32], group: int) -> NDArray[np.float64]:
    """Reshape hidden states to (rows, groups, group); pad the last group with zeros."""
    rows, size = hidden.shape
    padded = np.zeros((rows, -(-size // group) * group))
    padded[:, :size] = hidden
    return padded.reshape(rows, -1, group)


def _keeps_rounded(request: Any, quantized: NDArray[np.int8], scales: NDArray[np.float32]) -> bool:
    """Return whether this CPU's kernel adds no further error to hidden states from `_round_groups`.

    Args:
        quantized: The head's weights in 8 bits, shape (vocab, hidden).
        scales: The scale of each row of weights, shape (vocab, 1).
    """
    weights = quantized[:SEEN] * scales[:SEEN].astype(np.float64)
    for rows in PROBED_ROWS:
        hidden = np.random.default_rng(rows).standard_normal((rows, quantized.shape[1])).astype(np.float32)
        rounded = _round_groups(hidden)[0]
        expected = rounded @ weights.T
        limits = ROUNDING * np.linalg.norm(rounded, axis=1, keepdims=True) * np.linalg.norm(weights, axis=1)
        if (np.abs(run_head(request, rounded, len(quantized))[:, :SEEN] - expected) > limits).any():
            return False
    return True


def _group_size(hidden_size: int) -> int:
    """Return the number of hidden values that share a scale; the last group may be smaller."""
    return next((size for size in GROUP_SIZES if hidden_size % size == 0), GROUP_SIZES[-1])


def compile_head(model: openvino.Model, precision: str, threads: int, *, group: int | None = None) -> Any:
    """Compile a head that maps hidden states (rows, hidden) to logits (rows, vocab).

    Args:
        precision: Precision of the products, "f32" or "bf16".
        group: Number of hidden values that OpenVINO quantizes with one scale; None: no quantization.
    """
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": group or 0,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    return core().compile_model(model, "CPU", options).create_infer_request()


def run_head(request: Any, hidden: NDArray[np.float32], vocab_size: int) -> NDArray[np.float32]:
    """Return the logits (rows, vocab) for hidden states (rows, hidden).

    Args:
        request: The result of `compile_head`.
    """
    import openvino

    logits = np.empty((len(hidden), vocab_size), dtype=np.float32)
    request.set_input_tensor(openvino.Tensor(hidden))
    request.set_output_tensor(openvino.Tensor(logits, shared_memory=True))
    request.start_async()  # unlike `infer`, which hides the error if a kernel refuses its inputs
    request.wait()
    return logits


def head_model(weights: Any, hidden_size: int, *, is_integer: bool = False) -> openvino.Model:
    """Return a model that multiplies hidden states by weights.

    Args:
        weights: Node of the weights, shape (vocab, hidden).
        hidden_size: Length of a row of hidden states.
        is_integer: Whether hidden states are integers of at most `LARGEST`, for integer multiplication.
    """
    import openvino
    from openvino import opset13

    hidden = opset13.parameter([-1, hidden_size], np.float32)
    read = hidden
    if is_integer:  # rounds nothing, and tells OpenVINO that the values are 8-bit integers
        least, most = np.float32(-LARGEST - 1), np.float32(LARGEST)
        read = opset13.fake_quantize(hidden, least, most, least, most, 2 * LARGEST + 2)
    return openvino.Model([opset13.matmul(read, weights, False, True)], [hidden], "head")


def _product(quantized: NDArray[np.int8], scales: NDArray[np.float32], *, is_integer: bool) -> openvino.Model:
    import openvino
    from openvino import opset13

    shared = openvino.Tensor(quantized, openvino.Shape(list(quantized.shape)), openvino.Type.i8)
    constant = openvino.op.Constant(shared)
    unpacked = opset13.multiply(opset13.convert(constant, "f32"), opset13.constant(scales))
    return head_model(unpacked.output(0), quantized.shape[1], is_integer=is_integer)


def _quantize(
    weights: HeadWeights, quantized: NDArray[np.int8], threads: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Quantize the weights; return the scale of each row, and the norms of its error and of the quantized row.

    Args:
        quantized: Array that receives the weights in 8 bits.
    """
    vocab = len(quantized)
    scales, bounds = np.empty((vocab, 1), np.float32), np.empty((2, vocab), np.float32)

    def quantize(start: int) -> None:
        part = slice(start, start + BLOCK)
        rows = weights.rows(part)
        scales[part] = scale = np.maximum(np.abs(rows).max(1, keepdims=True) / LARGEST, np.finfo(np.float32).tiny)
        restored = np.rint(rows / scale)
        np.clip(restored, -LARGEST, LARGEST, out=restored)
        quantized[part] = restored
        restored *= scale
        bounds[:, part] = np.linalg.norm(rows - restored, axis=1), np.linalg.norm(restored, axis=1)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(quantize, range(0, vocab, BLOCK)))
    return scales, bounds * np.float32(1 + ROUNDING)
