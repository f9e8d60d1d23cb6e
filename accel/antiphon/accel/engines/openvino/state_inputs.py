"""Inputs of a graph with recurrent or convolutional states. This module does not import torch.

The rows of a forward pass form *paths*: chains of rows that start from a sequence's state. An
operation reads the state from the first block of a path, and writes the states after the path's
rows to its other blocks. A tree has one path for each leaf, so rows above a branch occur several
times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino

STATE_TABLES = (
    "state_rows",
    "state_outputs",
    "state_begins",
    "state_blocks",
    "state_block_begins",
    "state_past_lens",
    "state_intervals",
)
"""Inputs that describe the paths of a forward pass. All layers with state read them.

``state_rows``: the rows of all paths, one path after the other. ``state_outputs``: for each row of
the forward pass, an index of this row in ``state_rows``. The others are inputs of the operations,
in their order: where each path begins, the blocks of all paths, where the blocks of each path
begin, the number of tokens before each path, and the interval of each path. A state is written
after the last row, and after each multiple of the interval (in tokens).
"""

STATES = "state_cache."
"""Prefix of the names of inputs that hold states; the index of the state follows."""


def state_shapes(graph: openvino.Model) -> list[tuple[int, ...]]:
    """Return the shape of each state of a graph, in the order of `STATES`; empty for a graph without states."""
    ports = {port.get_any_name(): port for port in graph.inputs}
    shapes: list[tuple[int, ...]] = []
    while (port := ports.get(f"{STATES}{len(shapes)}")) is not None:
        _, *dimensions = port.get_partial_shape()
        shapes.append(tuple(each.get_length() for each in dimensions))
    return shapes
