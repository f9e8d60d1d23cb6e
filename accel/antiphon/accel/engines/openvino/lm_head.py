"""Compute the LM head in 8 bits, and the exact most likely token with the model's own weights.

The head is the largest matrix that a step reads: in a model of half a billion parameters, a quarter
of all weights. A product in 8 bits reads half as much memory. The error of this product has a known
bound. Therefore only a few tokens can have the largest logit. The logits of these candidates are
computed with the model's own weights, so the result is the argmax of the unchanged model.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import places_of
from antiphon.accel.engines.numpy_logits import NumpyLogits, round_to_bfloat16, top_k
from antiphon.accel.engines.openvino.quantized_head import (
    BLOCK,
    ApproximateLogits,
    HeadWeights,
    QuantizedHead,
    compile_head,
    head_model,
    prefers_integer_units,
    run_head,
)
from antiphon.accel.engines.openvino.weights import constant_memory, shared_constant, weights_of

if TYPE_CHECKING:
    import openvino
    from torch import Tensor

MAX_CANDIDATES, CANDIDATES_RATE = 2048, 0.05
"""Mean number of candidates above which the exact head runs; weight of a new row in the mean.

Rescoring 2,048 tokens takes as long as the exact product. Real texts have some 30 candidates.
Hidden states with single large values have a larger quantization error, and so more candidates.
"""

MIN_BYTES = 2**27
"""Smaller heads stay in the graph: finding the candidates would take longer than the time saved."""


SELECTING = ("Gather", "Reshape", "Slice", "Transpose")
"""Operations between all hidden states and the head. They select the rows that get logits."""


def split_head(graph: openvino.Model) -> HeadWeights | None:
    """Remove the head from a graph, so that the graph returns hidden states (1, rows, hidden).

    Args:
        graph: The graph to change; its weights are constants, and its output is the logits.

    Returns:
        The head's weights; None, and the graph unchanged, if logits are not a plain product with the weights.
    """
    result = graph.get_results()[0]
    product = result.input_value(0).get_node()
    weights = weights_of(product)
    if weights is None:
        return None
    result.input(0).replace_source_output(product.input_value(0))
    graph.validate_nodes_and_infer_types()
    return HeadWeights(constant_memory(weights), weights.get_element_type().get_type_name())


def add_hidden_states(graph: openvino.Model) -> int:
    """Add a second output to a graph: the hidden states of all rows, shape (1, rows, hidden).

    Returns:
        The size of the hidden states; 0, and the graph unchanged, if they cannot be found.
    """
    from openvino import opset13

    product = graph.get_results()[0].input_value(0).get_node()
    source, is_selected = product.input_value(0) if product.get_type_name() == "MatMul" else None, False
    while source is not None and source.get_node().get_type_name() in SELECTING:
        is_selected = is_selected or source.get_node().get_type_name() == "Gather"
        source = source.get_node().input_value(0)
    if source is None or not is_selected:
        return 0
    size = int(product.input_value(0).get_partial_shape()[2].get_length())
    shape = opset13.constant(np.array([1, -1, size], dtype=np.int64))
    graph.add_results([opset13.result(opset13.reshape(source, shape, special_zero=False))])
    graph.validate_nodes_and_infer_types()
    return size


class LMHead:
    """Computes approximate logits, exact logits, and the exact most likely token of hidden states.

    Args:
        precision: Precision of exact logits, "f32" or "bf16".
        has_integer_units: Whether to use integer units; by default `prefers_integer_units` decides with the first
            hidden states.
    """

    def __init__(
        self, weights: HeadWeights, *, precision: str, threads: int, has_integer_units: bool | None = None
    ) -> None:
        self.vocab_size, self.hidden_size = (int(size) for size in weights.values.shape)
        self._weights = weights
        self._precision, self._threads = precision, threads
        self._lock = Lock()
        self._has_integer_units = has_integer_units
        self._quantized: QuantizedHead | None = None
        self._mean_candidates = 0.0
        self._exact: Any = None  # compiled when logits are first needed: sampling, processors, logprobs

    @property
    def is_vague(self) -> bool:
        """Whether computing all exact logits is faster, because the candidates are too many."""
        return self._mean_candidates > MAX_CANDIDATES

    def as_read(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return hidden states rounded as the exact head rounds them before it multiplies."""
        return round_to_bfloat16(hidden) if self._precision == "bf16" else hidden

    def approximate_logits(self, hidden: NDArray[np.float32]) -> ApproximateLogits:
        """Return approximate logits of hidden states, shape (rows, hidden)."""
        with self._lock:
            if self._quantized is None:
                chosen = self._has_integer_units
                chosen = prefers_integer_units(hidden) if chosen is None else chosen
                self._quantized = QuantizedHead(self._weights, threads=self._threads, has_integer_units=chosen)
            return self._quantized.approximate(hidden)

    def top_k(self, hidden: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ``k`` best tokens of hidden states (rows, hidden) by approximate logits; see `Logits.top_k`."""
        found = self.approximate_logits(hidden)
        return top_k(found.products, k, found.scales)

    def exact_logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the model's logits (rows, vocab) for hidden states (rows, hidden)."""
        with self._lock:
            if self._exact is None:
                constant = shared_constant(self._weights.values, self._weights.kind)
                self._exact = compile_head(head_model(constant, self.hidden_size), self._precision, self._threads)
            return run_head(self._exact, hidden, self.vocab_size)

    def release_exact(self) -> None:
        """Free the memory of the exact head; it is compiled again when it is needed."""
        with self._lock:
            self._exact = None

    def best_token(self, approximate: ApproximateLogits, row: int, hidden: NDArray[np.float32]) -> int:
        """Return the token with the largest exact logit; in a tie, the lowest token id.

        With weights ``w``, their quantized form ``q``, hidden states ``h``, and their quantized form ``g``, a logit's
        error is ``|wh - qg| <= |w - q| |h| + |q| |h - g|``, by the Cauchy-Schwarz inequality. A token is a candidate if
        the upper bound of its logit reaches the exact logit of the approximately best token.

        Args:
            hidden: Hidden states of the row, shape (hidden,).
        """
        products, scale = approximate.products[row], float(approximate.scales[row])
        best = int(products.argmax())
        if not (np.isfinite(hidden).all() and np.isfinite(products[best] * scale)):
            return int(self.exact_logits(hidden[None])[0].argmax())
        exact = hidden.astype(np.float64)
        least = float(self._weights.rows(np.array([best]))[0].astype(np.float64) @ exact)
        quantized = cast(QuantizedHead, self._quantized)
        factors = np.array([float(np.linalg.norm(exact)), approximate.errors[row]])
        # First use the largest error of any token: one pass over the products leaves few tokens.
        threshold = np.nextafter(np.float32((least - factors @ quantized.largest_norms) / scale), np.float32(-np.inf))
        near = np.flatnonzero(products >= threshold)
        near = near[products[near] * scale + factors @ quantized.norms[:, near] >= least]
        self._mean_candidates += (len(near) - self._mean_candidates) * CANDIDATES_RATE
        if len(near) == 1:
            return best
        parts = (near[start : start + BLOCK] for start in range(0, len(near), BLOCK))
        logits = np.concatenate([self._weights.rows(part).astype(np.float64) @ exact for part in parts])
        return int(near[int(logits.argmax())])


class PassLogits:
    """The logits of a forward pass over several sequences. The first use computes all rows.

    Args:
        hidden: Hidden states of the rows, shape (rows, hidden).
    """

    def __init__(self, lm_head: LMHead, hidden: NDArray[np.float32]) -> None:
        self.lm_head = lm_head
        self.hidden = lm_head.as_read(hidden)
        self._lock = Lock()
        self._approximate: ApproximateLogits | None = None
        self._exact: NDArray[np.float32] | None = None

    def known(self) -> ApproximateLogits | NDArray[np.float32]:
        """Return approximate logits, or exact logits if they are known or if there are too many candidates."""
        with self._lock:
            if self._exact is None and self.lm_head.is_vague:
                self._exact = self.lm_head.exact_logits(self.hidden)
            if self._exact is not None:
                return self._exact
            if self._approximate is None:
                self._approximate = self.lm_head.approximate_logits(self.hidden)
            return self._approximate

    def exact(self) -> NDArray[np.float32]:
        """Return the model's logits, shape (rows, vocab)."""
        with self._lock:
            if self._exact is None:
                self._exact = self.lm_head.exact_logits(self.hidden)
            return self._exact


class HeadLogits:
    """Implements `antiphon.accel.drafting.draft.Logits` for some rows of a forward pass."""

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
        place, known = self.rows[row + 1], self.source.known()
        if isinstance(known, np.ndarray):
            return int(known[place].argmax())
        return self.source.lm_head.best_token(known, place, self.source.hidden[place])

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See `Logits.top_k`. Order and probabilities follow the approximate logits."""
        known, places = self.source.known(), places_of(rows, self.rows.start)
        if isinstance(known, np.ndarray):
            return top_k(known[places], k)
        return top_k(known.products[places], k, known.scales[places])

    def head(self, rows: int) -> HeadLogits:
        """See `Logits.head`."""
        return HeadLogits(self.source, self.rows[: 1 + rows])

    def tensor(self) -> Tensor:
        """See `Logits.tensor`."""
        return NumpyLogits(self.source.exact()[self.rows.start : self.rows.stop]).tensor()
