"""The LM head in 8 bits, and the exact most likely token by the model's own weights.

The head is the largest matrix that a step reads: a quarter of all weights of a model of half a billion parameters. A
product in 8 bits reads half of it. Its error has a bound, so the tokens whose logit could be the largest are known; the
logits of these few are then computed with the model's own weights. The result is the argmax of the unchanged model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.accel.engines.numpy_logits import NumpyLogits
from antiphon.accel.engines.openvino.runtime import core
from antiphon.accel.engines.openvino.weights import TemporaryWeights, constant_memory, shared_constant, weights_of

if TYPE_CHECKING:
    import openvino

GROUP_SIZES = (128, 64)
"""Numbers of hidden values that may share a scale when they are quantized to 8 bits, the faster one first."""

LARGEST = 127
"""Largest quantized value. Weights and hidden values are quantized symmetrically."""

SLACK = 1.05
"""Factor of the quantization error of hidden values, for roundings of their scales."""

ROUNDING = 1e-5
"""Relative error of a sum of products in float32; sums of 16,384 random products are 1e-6 apart."""

MAX_CANDIDATES, CANDIDATES_RATE = 2048, 0.05
"""Mean number of candidates above which the exact head is used instead, and the rate at which the mean follows.

Rescoring 2,048 tokens takes as long as the exact product. Real texts have some 30, but hidden states with single large
values have a larger quantization error.
"""

MIN_BYTES = 2**27
"""Smaller heads stay in the graph: the saved time would not pay for finding the candidates."""

BLOCK = 512
"""Number of rows of the head that are converted at a time: they fit into the processor's cache."""


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The head's matrix as it is in the model.

    Attributes:
        values: Shape (vocab, hidden); 16-bit values as their bits in uint16. Its owner must outlive the object.
        kind: Element type, "bf16", "f16" or "f32".
    """

    values: NDArray[Any]
    kind: str

    def rows(self, tokens: NDArray[np.int64] | slice) -> Tensor:
        """Return the rows of some tokens in float32, shape (tokens, hidden)."""
        rows = self.values[tokens]
        if self.kind == "f32":
            return torch.from_numpy(rows)
        half = torch.bfloat16 if self.kind == "bf16" else torch.float16
        return torch.from_numpy(rows).view(half).float()


def split_head(graph: openvino.Model) -> HeadWeights | None:
    """Remove the head from a graph, which then returns the hidden states that the head reads, (1, rows, hidden).

    Args:
        graph: The graph, which is changed, with its weights as constants and logits as the output.

    Returns:
        The head's weights; None if logits are not a plain product with the weights, and the graph is unchanged.
    """
    result = graph.get_results()[0]
    product = result.input_value(0).get_node()
    weights = weights_of(product)
    if weights is None:
        return None
    result.input(0).replace_source_output(product.input_value(0))
    graph.validate_nodes_and_infer_types()
    return HeadWeights(constant_memory(weights), weights.get_element_type().get_type_name())


class LMHead:
    """Computes logits from hidden states: approximate ones, exact ones, and the exact most likely token.

    Args:
        weights: The head's weights.
        precision: Precision of exact logits, "f32" or "bf16".
        threads: Number of threads.
    """

    def __init__(self, weights: HeadWeights, *, precision: str, threads: int) -> None:
        self.vocab_size, self.hidden_size = (int(size) for size in weights.values.shape)
        self._weights = weights
        self._precision, self._threads = precision, threads
        self._lock = Lock()
        memory = TemporaryWeights()
        quantized, scales, self._bounds = _quantize(weights, memory)
        self._largest_bounds = self._bounds.max(1).astype(np.float64)
        self._mean_candidates = 0.0
        self._approximate = _compile(_quantized_product(quantized, scales), "f32", threads)
        self._run(self._approximate, np.zeros((1, self.hidden_size), dtype=np.float32))  # packs the weights
        self._memory = memory
        memory.release()
        self._exact: Any = None  # compiled when logits are first needed: sampling, processors, logprobs

    @property
    def is_vague(self) -> bool:
        """Whether too many tokens are candidates, so that exact logits are found faster."""
        return self._mean_candidates > MAX_CANDIDATES

    def as_read(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return hidden states rounded to the precision in which the exact head reads them."""
        return torch.from_numpy(hidden).bfloat16().float().numpy() if self._precision == "bf16" else hidden

    def approximate_logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return approximate logits, (rows, vocab), of hidden states, (rows, hidden)."""
        with self._lock:
            return self._run(self._approximate, hidden)

    def exact_logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the model's logits, (rows, vocab), of hidden states, (rows, hidden)."""
        with self._lock:
            if self._exact is None:
                self._exact = _compile(_product(self._weights), self._precision, self._threads)
            return self._run(self._exact, hidden)

    def release_exact(self) -> None:
        """Free the memory of the exact head; it is compiled again when it is needed."""
        with self._lock:
            self._exact = None

    def best_token(self, approximate: NDArray[np.float32], hidden: NDArray[np.float32]) -> int:
        """Return the token with the largest exact logit; if tied, the lowest id.

        With weights ``w``, their quantized form ``q``, hidden states ``h``, and their quantized form ``g``, a logit's
        error is ``|wh - qg| <= |w - q| |h| + |q| |h - g|``, by the Cauchy-Schwarz inequality. A token is a candidate if
        its largest possible logit reaches the exact one of the token with the best approximate logit.

        Args:
            approximate: Approximate logits of one row, shape (vocab,).
            hidden: Hidden states of the row, shape (hidden,).
        """
        best = int(approximate.argmax())
        if not np.isfinite(approximate[best]):
            return int(self.exact_logits(hidden[None])[0].argmax())
        exact = torch.from_numpy(hidden).double()
        least = float(self._weights.rows(np.array([best])).double() @ exact)
        scales = _bound_scales(hidden)
        # First with the largest bound of all tokens: that reads the logits once, and few tokens are left.
        threshold = np.nextafter(np.float32(least - scales @ self._largest_bounds), np.float32(-np.inf))
        near = np.flatnonzero(approximate >= threshold)
        near = near[approximate[near] + scales @ self._bounds[:, near] >= least]
        self._mean_candidates += (len(near) - self._mean_candidates) * CANDIDATES_RATE
        if len(near) == 1:
            return best
        parts = (near[start : start + BLOCK] for start in range(0, len(near), BLOCK))
        logits = torch.cat([self._weights.rows(part).double() @ exact for part in parts])
        return int(near[int(logits.numpy().argmax())])

    def error_bounds(self, hidden: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the largest possible error of each approximate logit of a row, shape (vocab,)."""
        bounds: NDArray[np.float64] = _bound_scales(hidden) @ self._bounds
        return bounds

    def _run(self, request: Any, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        import openvino

        logits = np.empty((len(hidden), self.vocab_size), dtype=np.float32)
        request.set_input_tensor(openvino.Tensor(hidden))
        request.set_output_tensor(openvino.Tensor(logits, shared_memory=True))
        request.start_async()  # unlike `infer`, which hides the error if a kernel refuses its inputs
        request.wait()
        return logits


class PassLogits:
    """The logits of one forward pass over several sequences, computed for all of its rows when they are first needed.

    Args:
        lm_head: The head.
        hidden: Hidden states of the rows, shape (rows, hidden).
    """

    def __init__(self, lm_head: LMHead, hidden: NDArray[np.float32]) -> None:
        self.lm_head = lm_head
        self.hidden = lm_head.as_read(hidden)
        self._lock = Lock()
        self._approximate: NDArray[np.float32] | None = None
        self._exact: NDArray[np.float32] | None = None

    def approximate(self) -> NDArray[np.float32]:
        """Return approximate logits, or exact ones if they are known, shape (rows, vocab)."""
        with self._lock:
            if self._exact is None and self.lm_head.is_vague:
                self._exact = self.lm_head.exact_logits(self.hidden)
            if self._exact is not None:
                return self._exact
            if self._approximate is None:
                self._approximate = self.lm_head.approximate_logits(self.hidden)
            return self._approximate

    @property
    def is_exact(self) -> bool:
        """Whether the model's logits are known."""
        return self._exact is not None

    def exact(self) -> NDArray[np.float32]:
        """Return the model's logits, shape (rows, vocab)."""
        with self._lock:
            if self._exact is None:
                self._exact = self.lm_head.exact_logits(self.hidden)
            return self._exact


class HeadLogits:
    """Implements `antiphon.accel.drafting.draft.Logits` for some rows of a forward pass.

    Args:
        source: The logits of the forward pass.
        rows: Its rows of one sequence: the root and the draft.
    """

    def __init__(self, source: PassLogits, rows: range) -> None:
        self.source = source
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def vocab_size(self) -> int:
        """See `Logits.vocab_size`."""
        return self.source.lm_head.vocab_size

    def argmax(self, row: int) -> int:
        """See `Logits.argmax`."""
        place, logits = self.rows[row + 1], self.source.approximate()
        if self.source.is_exact:
            return int(logits[place].argmax())
        return self.source.lm_head.best_token(logits[place], self.source.hidden[place])

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See `Logits.top_k`. Order and probabilities follow the approximate logits."""
        return NumpyLogits(self._own(self.source.approximate())).top_k(rows, k)

    def head(self, rows: int) -> HeadLogits:
        """See `Logits.head`."""
        return HeadLogits(self.source, self.rows[: 1 + rows])

    def tensor(self) -> Tensor:
        """See `Logits.tensor`."""
        return torch.from_numpy(self._own(self.source.exact()))

    def _own(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        return logits[self.rows.start : self.rows.stop]


def _quantize(
    weights: HeadWeights, memory: TemporaryWeights
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    """Return the weights in 8 bits, the scale of each row, and the norms that bound the error of its logit.

    The norms, shape (2, vocab), are those of the row's error and of the quantized row.
    """
    vocab, hidden = weights.values.shape
    quantized = memory.array((vocab, hidden), np.int8)
    result = torch.from_numpy(quantized)
    scales, bounds = torch.empty((vocab, 1)), torch.empty((2, vocab))
    steps = torch.empty((BLOCK, hidden))
    for start in range(0, vocab, BLOCK):
        part = slice(start, start + BLOCK)
        rows = weights.rows(part)
        restored = steps[: len(rows)]
        scale = rows.abs().amax(1, keepdim=True).div_(LARGEST).clamp_min_(torch.finfo(torch.float32).tiny)
        torch.div(rows, scale, out=restored).round_().clamp_(-LARGEST, LARGEST)
        result[part], scales[part] = restored, scale
        restored.mul_(scale)
        bounds[0, part] = torch.linalg.vector_norm(rows - restored, dim=1)
        bounds[1, part] = torch.linalg.vector_norm(restored, dim=1)
    return quantized, scales.numpy(), bounds.mul_(1 + ROUNDING).numpy()


def _group_size(hidden_size: int) -> int:
    """Return the number of hidden values that share a scale; the last group may be smaller."""
    return next((size for size in GROUP_SIZES if hidden_size % size == 0), GROUP_SIZES[-1])


def _bound_scales(hidden: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the factors of a row's norms in the bound of its error: the norms of ``h`` and of ``h - g``."""
    group = _group_size(len(hidden))
    padded = np.zeros(-(-len(hidden) // group) * group)
    padded[: len(hidden)] = np.abs(hidden)
    length = float(np.linalg.norm(padded))
    half_steps = padded.reshape(-1, group).max(1) / LARGEST / 2
    error = SLACK * float(np.sqrt(group * (half_steps**2).sum())) + ROUNDING * length
    return np.array([length, error])


def _quantized_product(quantized: NDArray[np.int8], scales: NDArray[np.float32]) -> openvino.Model:
    import openvino
    from openvino import opset13

    constant = openvino.op.Constant(openvino.Tensor(quantized))
    unpacked = opset13.multiply(opset13.convert(constant, "f32"), opset13.constant(scales))
    return _model(unpacked.output(0), quantized.shape[1])


def _product(weights: HeadWeights) -> openvino.Model:
    return _model(shared_constant(weights.values, weights.kind), weights.values.shape[1])


def _model(weights: Any, hidden_size: int) -> openvino.Model:
    import openvino
    from openvino import opset13

    hidden = opset13.parameter([-1, hidden_size], np.float32)
    return openvino.Model([opset13.matmul(hidden, weights, False, True)], [hidden], "head")


def _compile(model: openvino.Model, precision: str, threads: int) -> Any:
    group = _group_size(model.input().get_partial_shape()[1].get_length())
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    return core().compile_model(model, "CPU", options).create_infer_request()
