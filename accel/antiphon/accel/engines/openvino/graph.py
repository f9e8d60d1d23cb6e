"""The compiled graph, which runs one forward pass over the rows of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import Logits
from antiphon.accel.engines.numpy_logits import NumpyLogits
from antiphon.accel.engines.openvino.lm_head import HeadLogits, LMHead, PassLogits, add_hidden_states, split_head
from antiphon.accel.engines.openvino.mlp import FUSED, fuse_products, keep_products_apart, merge_gate_and_up
from antiphon.accel.engines.openvino.paged_inputs import CacheShape, set_cache_shapes
from antiphon.accel.engines.openvino.paged_memory import BlockStorage
from antiphon.accel.engines.openvino.row_states import SequenceStates
from antiphon.accel.engines.openvino.runtime import core
from antiphon.accel.engines.openvino.state_operations import STATE_PASS, state_pass, state_shapes
from antiphon.accel.engines.openvino.weights import Owners, TemporaryWeights

if TYPE_CHECKING:
    import openvino

_CAUSAL: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

MIN_HALF_PRECISION_THREADS = 2
"""Minimum number of threads in half precision.

If OpenVINO fuses the three matrix products of an MLP block, it divides the threads into two halves; with a single
thread this is a division by zero, which ends the process.
"""


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows of one sequence in a forward pass.

    Attributes:
        positions: Position of each row, shape (rows,).
        past: Number of cached tokens before the rows.
        blocks: Exactly the blocks that hold the sequence's cached tokens and the rows. With
            additional blocks, the operation would write out of bounds.
        num_logits: Number of rows for which logits are returned; these are the last rows.
        tree_mask: Which rows each row attends to, shape (rows * rows,). None: to all earlier rows.
        states: States of the rows; None if the model has none.
    """

    tokens: Sequence[int]
    positions: NDArray[np.int64]
    past: int
    blocks: Sequence[int]
    num_logits: int
    tree_mask: NDArray[np.uint8] | None = None
    states: SequenceStates | None = None


class PagedGraph:
    """A graph with paged attention, compiled for this CPU.

    Args:
        graph: The converted model, see `conversion.paged_model`.
        precision: Precision of computation and of the KV cache, "f32" or "bf16".
        weights: Owners of the memory of the graph's constants, see `weights.attach_weights`.
        splits_head: Whether to compute the LM head separately, see `lm_head`.
        fuses_mlp: Whether to fuse the products of MLP blocks. This takes additional memory until
            the first forward pass.
        gives_hidden_states: Whether forward passes also return the hidden states that the LM head reads, if the graph
            allows it.
        is_compressed: Whether the weights were compressed. They are then decompressed before each
            multiplication. Activations are not quantized, because a difference in their last bit
            could then change a token.

    Attributes:
        hidden_size: Size of the hidden states; 0 if the graph does not return them.
        hidden_states: For each sequence of the last forward pass, an array (rows, hidden_size).

    Raises:
        RuntimeError: OpenVINO cannot compile the graph.
    """

    def __init__(
        self,
        graph: openvino.Model,
        *,
        precision: str,
        threads: int,
        weights: Owners | None = None,
        splits_head: bool = True,
        fuses_mlp: bool = False,
        gives_hidden_states: bool = False,
        is_compressed: bool = False,
    ) -> None:
        self.precision = precision
        self.threads = threads
        self.cache_shapes: list[CacheShape] = set_cache_shapes(graph)
        self.state_shapes = state_shapes(graph)
        weights = [] if weights is None else weights
        self.hidden_size = add_hidden_states(graph) if gives_hidden_states else 0
        self.hidden_states: list[NDArray[np.float32]] = []
        head = split_head(graph) if splits_head and weights and not is_compressed else None
        self.lm_head = None if head is None else LMHead(head, precision=precision, threads=threads)
        self._output_size = int(graph.outputs[0].get_partial_shape()[2].get_length())
        self.vocab_size = self._output_size if self.lm_head is None else self.lm_head.vocab_size
        self._memory = TemporaryWeights()
        num_fused = fuse_products(graph, self._memory) if fuses_mlp else 0
        if not num_fused:
            if precision != "f32":
                keep_products_apart(graph)
            if weights and not is_compressed:
                merge_gate_and_up(graph, weights)
        options: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,  # the default, 8 bits, would change the model's outputs
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads if precision == "f32" else max(threads, MIN_HALF_PRECISION_THREADS),
        }
        if is_compressed:
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        self._weights = weights
        self._compiled = core().compile_model(graph, "CPU", options)
        # Only the fused operation is known to read its weights once.
        self.has_temporary_weights = num_fused > 0 and self._num_fused() == num_fused
        self._request: Any = self._compiled.create_infer_request()
        self._ports = {name: port for port in self._compiled.inputs for name in port.names}
        self._storage: BlockStorage | None = None

    def attach(self, storage: BlockStorage) -> None:
        """Use this memory as the KV cache of all forward passes."""
        self._storage = storage
        for name, tensor in storage.tensors().items():
            self._request.set_tensor(name, tensor)

    def release_temporary_weights(self) -> None:
        """Free the original weights of which OpenVINO made packed copies in the first forward pass."""
        if self.has_temporary_weights:
            self._memory.release()

    def _num_fused(self) -> int:
        nodes = self._compiled.get_runtime_model().get_ops()
        return sum(node.get_rt_info()["layerType"].astype(str) == FUSED for node in nodes)

    def release_exact_head(self) -> None:
        """Free the memory of the exact head; it is compiled again when all logits are needed."""
        if self.lm_head is not None:
            self.lm_head.release_exact()

    def run(self, sequences: Sequence[SequenceRows], *, needs_best: bool = False) -> list[Logits]:
        """Run one forward pass over the rows of several sequences.

        Args:
            needs_best: Whether the caller needs the most likely tokens; if so, this call prepares them.

        Returns:
            The requested logits of each sequence.
        """
        import openvino

        counts = [len(rows.tokens) for rows in sequences]
        starts = _offsets(counts)
        logit_rows = np.concatenate(
            [np.arange(end - rows.num_logits, end) for rows, end in zip(sequences, starts[1:], strict=True)]
        )
        masks = [_CAUSAL if rows.tree_mask is None else rows.tree_mask for rows in sequences]
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": np.array([[token] for rows in sequences for token in rows.tokens], dtype=np.int64),
            "position_ids": np.concatenate([rows.positions for rows in sequences])[:, None],
            "rows": logit_rows.astype(np.int64),
            "past_lens": np.array([rows.past for rows in sequences], dtype=np.int32),
            "subsequence_begins": starts,
            "block_indices": np.array([block for rows in sequences for block in rows.blocks], dtype=np.int32),
            "block_indices_begins": _offsets([len(rows.blocks) for rows in sequences]),
            "max_context_len": np.array(
                max(rows.past + count for rows, count in zip(sequences, counts, strict=True)), dtype=np.int32
            ),
            "qq_bias": np.concatenate(masks),
            "qq_bias_begins": _offsets([len(mask) for mask in masks]),
        }
        for name, numbers in inputs.items():
            self._request.set_tensor(self._ports[name], openvino.Tensor(numbers))
        output = np.empty((1, len(logit_rows), self._output_size), dtype=np.float32)
        self._request.set_output_tensor(0, openvino.Tensor(output, shared_memory=True))
        states = np.empty((1, starts[-1], self.hidden_size), dtype=np.float32)
        if self.hidden_size:
            self._request.set_output_tensor(1, openvino.Tensor(states, shared_memory=True))
        with state_pass([rows.states for rows in sequences if rows.states is not None]) as number:
            if self.state_shapes:
                self._request.set_tensor(self._ports[STATE_PASS], openvino.Tensor(np.array([number])))
            self._request.start_async()  # unlike `infer`, which hides the error if a kernel refuses its inputs
            self._request.wait()
        self.hidden_states = np.split(states[0], starts[1:-1])
        ends = np.cumsum([rows.num_logits for rows in sequences]).tolist()
        parts = [range(end - rows.num_logits, end) for rows, end in zip(sequences, ends, strict=True)]
        if self.lm_head is None:
            return [NumpyLogits(output[0, part.start : part.stop]) for part in parts]
        pass_logits = PassLogits(self.lm_head, output[0])
        if needs_best:
            pass_logits.known()
        return [HeadLogits(pass_logits, part) for part in parts]


def _offsets(counts: Sequence[int]) -> NDArray[np.int32]:
    """Return where each part of a concatenated array begins, and where the last part ends."""
    return np.cumsum([0, *counts], dtype=np.int32)
