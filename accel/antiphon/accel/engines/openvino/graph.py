"""A compiled graph: one forward over flat tokens of several texts. Knows tables and rows; no texts, and no drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.engines.openvino.paged_memory import BlockStorage
from antiphon.accel.engines.openvino.paged_attention import Heads, name_heads
from antiphon.accel.engines.openvino.runtime import core

if TYPE_CHECKING:
    import openvino

_CAUSAL: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

FEWEST = 2
"""Threads in half precision, where OpenVINO fuses a block's three products: on CPUs with AMX it gives each half of the
threads one of them, and divides by zero of one thread's half, which ends the process."""


@dataclass(frozen=True, slots=True)
class Share:
    """One text's part of a forward: its tokens and their positions, after ``past`` slots that it holds in ``blocks``.

    ``blocks`` hold exactly the past and the rows: of more, the operation would write beyond its own memory. ``sees``
    is the flat table of which row sees which; None where they simply follow each other. The logits of the last
    ``asked`` rows are wanted.
    """

    tokens: Sequence[int]
    positions: NDArray[np.int64]
    past: int
    blocks: Sequence[int]
    asked: int
    sees: NDArray[np.uint8] | None = None


class PagedGraph:
    """A graph, compiled for this CPU, in which keys and values are kept in ``precision`` as well.

    Where its weights are ``compressed``, they are made whole before they are multiplied: what goes through the layers
    is not rounded to as few bits, for then a difference in its last bit could become one of a token.

    Raises:
        RuntimeError: OpenVINO cannot compile it.
    """

    def __init__(self, graph: openvino.Model, *, precision: str, threads: int, compressed: bool = False) -> None:
        self.precision = precision
        self.threads = threads
        self.heads: list[Heads] = name_heads(graph)
        self.vocabulary = int(graph.outputs[0].get_partial_shape()[2].get_length())
        options: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,  # the default is 8 bits, which is another model
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads if precision == "f32" else max(threads, FEWEST),
        }
        if compressed:
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        self._compiled = core().compile_model(graph, "CPU", options)
        self._request: Any = self._compiled.create_infer_request()
        self._ports = {name: port for port in self._compiled.inputs for name in port.names}
        self._memory: BlockStorage | None = None

    def attach(self, memory: BlockStorage) -> None:
        """Let this memory be what forwards read and write."""
        self._memory = memory
        for name, tensor in memory.tensors().items():
            self._request.set_tensor(name, tensor)

    def run(self, shares: Sequence[Share]) -> NDArray[np.float32]:
        """Logits of all rows that are asked for, one text after the other, of shape (rows, vocab); the caller's own."""
        import openvino

        counts = [len(share.tokens) for share in shares]
        begins = _begins(counts)
        rows = np.concatenate(
            [np.arange(end - share.asked, end) for share, end in zip(shares, begins[1:], strict=True)]
        )
        sees = [_CAUSAL if share.sees is None else share.sees for share in shares]
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": np.array([[token for share in shares for token in share.tokens]], dtype=np.int64),
            "position_ids": np.concatenate([share.positions for share in shares])[None],
            "rows": rows.astype(np.int64),
            "past_lens": np.array([share.past for share in shares], dtype=np.int32),
            "subsequence_begins": begins,
            "block_indices": np.array([block for share in shares for block in share.blocks], dtype=np.int32),
            "block_indices_begins": _begins([len(share.blocks) for share in shares]),
            "max_context_len": np.array(
                max(share.past + count for share, count in zip(shares, counts, strict=True)), dtype=np.int32
            ),
            "qq_bias": np.concatenate(sees),
            "qq_bias_begins": _begins([len(table) for table in sees]),
        }
        for name, numbers in inputs.items():
            self._request.set_tensor(self._ports[name], openvino.Tensor(numbers))
        logits = np.empty((1, len(rows), self.vocabulary), dtype=np.float32)
        self._request.set_output_tensor(openvino.Tensor(logits, shared_memory=True))
        self._request.start_async()  # its `infer` keeps silent about what a kernel refuses
        self._request.wait()
        answers: NDArray[np.float32] = logits[0]
        return answers


def _begins(counts: Sequence[int]) -> NDArray[np.int32]:
    """Where each part of a flat array begins, and where the last one ends."""
    return np.cumsum([0, *counts], dtype=np.int32)
