"""Operations of a graph for layers with recurrent or convolutional state. This module does not import torch.

OpenVINO calls back into Python for them. The states are not tensors of the graph: an input of the
graph names the forward pass, and so the `SequenceStates` of its sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from antiphon.accel.engines.openvino.row_states import (
    SequenceStates,
    convolve,
    gated_delta_rule,
    selective_scan,
)

if TYPE_CHECKING:
    import openvino

STATE_PASS = "state_pass"
"""Input with the number of the forward pass, shape (1,); only graphs with states have it."""


class StateFunction(NamedTuple):
    """A function of a layer with state.

    Attributes:
        num_rows: Number of arguments with one entry per row.
        shaped: Index of the argument that has the shape of the output.
    """

    compute: Callable[..., Any]
    num_rows: int
    shaped: int


STATE_FUNCTIONS: Mapping[str, StateFunction] = {
    "AntiphonConvolution": StateFunction(convolve, 1, 0),
    "AntiphonGatedDeltaRule": StateFunction(gated_delta_rule, 5, 2),
    "AntiphonSelectiveScan": StateFunction(selective_scan, 4, 2),
}
"""The functions by the name of their operation.

The inputs of an operation are the function's arguments for the rows, its other arguments, a constant
with the number of the state and its shape, and `STATE_PASS`.
"""

_passes: dict[int, Sequence[SequenceStates]] = {}
_numbers = count()


@contextmanager
def state_pass(sequences: Sequence[SequenceStates]) -> Iterator[int]:
    """Return the number of a forward pass over the rows of these sequences; it is valid inside the context."""
    number = next(_numbers)
    _passes[number] = sequences
    try:
        yield number
    finally:
        del _passes[number]


def state_shapes(graph: openvino.Model) -> list[tuple[int, ...]]:
    """Return the shape of each state of a graph, in the order of their numbers; empty for a graph without states."""
    shapes: dict[int, tuple[int, ...]] = {}
    for operation in graph.get_ops():
        if operation.get_type_name() in STATE_FUNCTIONS:
            place = operation.input_value(operation.get_input_size() - 2).get_node()
            if place.get_type_name() == "Convert":
                place = place.input_value(0).get_node()
            number, *shape = place.get_data().tolist()
            shapes[number] = tuple(shape)
    return [shapes[number] for number in sorted(shapes)]


@cache
def state_operation(name: str) -> Any:
    """Return the class of an operation for OpenVINO, by its name in `STATE_FUNCTIONS`."""
    from openvino import Op

    function = STATE_FUNCTIONS[name]

    class Operation(Op):  # type: ignore[misc]  # OpenVINO leaves it untyped
        def __init__(self, inputs: Sequence[Any] | None = None) -> None:
            super().__init__(self)
            if inputs is not None:
                self.set_arguments(list(inputs))
                self.constructor_validate_and_infer_types()

        def validate_and_infer_types(self) -> None:
            self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(function.shaped))

        def clone_with_new_inputs(self, inputs: Sequence[Any]) -> Operation:
            return type(self)(inputs)

        def visit_attributes(self, visitor: Any) -> bool:
            return True

        def has_evaluate(self) -> bool:
            return True

        def evaluate(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> bool:
            *given, place, number = (each.data for each in inputs)
            rows, weights = given[: function.num_rows], given[function.num_rows :]
            outputs[0].shape = rows[function.shaped].shape
            output, start = outputs[0].data, 0
            for sequence in _passes[int(number[0])]:
                part = slice(start, start := start + sequence.num_rows)
                sequence.compute(int(place[0]), function.compute, [row[part] for row in rows], weights, output[part])
            return True

    return type(name, (Operation,), {})
