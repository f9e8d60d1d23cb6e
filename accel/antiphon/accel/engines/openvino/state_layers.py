"""Layers with recurrent or convolutional state: the functions that they call while a model is traced.

Each function becomes an OpenVINO operation on states in blocks; see `state_inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from transformers.activations import ACT2FN

from antiphon.accel.engines.openvino.paged_inputs import STATE_TABLES

L2_EPSILON = 1e-6
"""Added to the squared norm of queries and keys, as in transformers."""


@dataclass(slots=True)
class StateTracing:
    """Input and output of the functions of layers with state while a model is traced.

    Attributes:
        states: The states of each call of a function, of shape (blocks, *shape); empty if only shapes are recorded.
        tables: The inputs named in `STATE_TABLES`.
        shapes: Shape of the state of each call, recorded in the order of the calls.
    """

    states: Sequence[Tensor] = ()
    tables: Sequence[Tensor] = ()
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The replacements of transformers' functions, by name; see `replaced_functions`."""
        return {
            "causal_conv1d_fn": self._convolve,
            "torch_chunk_gated_delta_rule": self._gated_delta_rule,
            "mamba2_chunk_scan": self._mamba2_scan,
        }

    def _convolve(
        self, hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
    ) -> Tensor:
        """Convolve the last inputs up to each row. Only the shape of the result is meaningful.

        Args:
            hidden_states: Shape (rows, channels, 1).
            weight: Shape (channels, size).
        """
        channels, size = weight.shape
        rows = hidden_states[..., 0]
        bias = torch.zeros(channels) if bias is None else bias
        weights = [weight[:, None], bias]
        output = self._call(torch.ops.antiphon.paged_convolution, (channels, size), [rows], weights, rows)
        output = output if activation is None else ACT2FN[activation](output)
        return output[..., None]

    def _gated_delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Compute the gated delta rule of each row. Shapes are as in transformers; states are None.

        Raises:
            ValueError: The layer does not normalize queries and keys.
        """
        if not use_qk_l2norm_in_kernel:
            raise ValueError("The gated delta rule has queries and keys that are not normalized.")
        shape = (int(value.shape[2]), int(value.shape[3]), int(key.shape[3]))
        rows = [given[:, 0] for given in (query, key, value, g, beta)]
        output = self._call(torch.ops.antiphon.paged_delta_rule, shape, rows, [], rows[2])
        return output[:, None], None

    def _mamba2_scan(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,  # noqa: N803  # the names of transformers, which are passed as keywords
        B: Tensor,  # noqa: N803
        C: Tensor,  # noqa: N803
        D: Tensor | None = None,  # noqa: N803
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, inf),
        return_final_states: bool = False,
        **_: Any,
    ) -> Any:
        """Compute Mamba-2's recurrence of each row. Shapes are as in transformers; states are None.

        Raises:
            ValueError: The layer limits the time step.
        """
        if tuple(dt_limit) != (0.0, inf):
            raise ValueError(f"Mamba-2's time step is limited to {dt_limit}, in prefills only.")
        dt = dt if dt_bias is None else dt + dt_bias
        dt = softplus(dt) if dt_softplus else dt
        shape = (int(hidden_states.shape[2]), int(hidden_states.shape[3]), int(B.shape[3]))
        rows = [given[:, 0] for given in (dt, B, hidden_states, C)]
        output = self._call(torch.ops.antiphon.paged_selective_scan, shape, rows, [A], rows[2])
        output = output if D is None else output + rows[2] * D[:, None]
        return (output[:, None], None) if return_final_states else output[:, None]

    def _call(
        self, operation: Any, shape: tuple[int, ...], rows: Sequence[Tensor], weights: Sequence[Tensor], like: Tensor
    ) -> Tensor:
        """Call an operation on the rows of all paths, and return its output for each row of the forward pass.

        Args:
            shape: Shape of a state.
            like: The tensor among ``rows`` that has the shape of the output.
        """
        number = len(self.shapes)
        self.shapes.append(shape)
        if not self.tables:
            return torch.zeros_like(like)
        indices, outputs, *others = self.tables
        given = [each.index_select(0, indices) for each in rows]
        output: Tensor = operation(*given, self.states[number], *weights, *others)
        return output.index_select(0, outputs)


def _convolution_to_openvino(context: Any) -> list[Any]:
    return [_operation("PagedCausalConv1D", 0)([context.get_input(index) for index in range(9)]).output(0)]


def _delta_rule_to_openvino(context: Any) -> list[Any]:
    query, key, value, gate, beta, state, *others = (context.get_input(index) for index in range(11))
    norm = {"use_qk_l2norm": True, "q_l2_norm_eps": L2_EPSILON, "k_l2_norm_eps": L2_EPSILON}
    operation = _operation("PagedGatedDeltaNet", 2, **norm)
    return [operation([query, key, value, state, gate, beta, *others]).output(0)]


def _selective_scan_to_openvino(context: Any) -> list[Any]:
    *rows, states, decay = (context.get_input(index) for index in range(6))
    others = [context.get_input(index) for index in range(6, 11)]
    return [_operation("PagedSelectiveSSM", 3)([decay, *rows, states, *others]).output(0)]


TRANSLATIONS: Mapping[str, Callable[[Any], list[Any]]] = {
    "antiphon::paged_convolution": _convolution_to_openvino,
    "antiphon::paged_delta_rule": _delta_rule_to_openvino,
    "antiphon::paged_selective_scan": _selective_scan_to_openvino,
}
"""Translations of the traced operations for OpenVINO's PyTorch frontend."""


@cache
def _operation(name: str, shaped: int, **attributes: Any) -> Any:
    """Return a class for an operation that the CPU plug-in has, but OpenVINO's Python API lacks.

    A graph with this class cannot be compiled directly. After the graph has been saved and loaded
    again, it contains the plug-in's own operation instead.

    Args:
        shaped: Index of the input that has the same shape as the output.
    """
    from openvino import Op

    class Operation(Op):  # type: ignore[misc]  # OpenVINO leaves it untyped
        def __init__(self, inputs: Sequence[Any]) -> None:
            super().__init__(self)
            self.set_arguments(list(inputs))
            self.constructor_validate_and_infer_types()

        def validate_and_infer_types(self) -> None:
            self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(shaped))

        def clone_with_new_inputs(self, inputs: Sequence[Any]) -> Operation:
            return type(self)(inputs)

        def visit_attributes(self, visitor: Any) -> bool:
            visitor.on_attributes(dict(attributes))
            return True

    return type(name, (Operation,), {})


_TABLES = ", ".join(f"Tensor {name}" for name in STATE_TABLES[2:])
_library: Any = torch.library.Library("antiphon", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch leaves it untyped
_library.define(f"paged_convolution(Tensor input, Tensor states, Tensor weight, Tensor bias, {_TABLES}) -> Tensor")
_library.define(
    "paged_delta_rule(Tensor query, Tensor key, Tensor value, Tensor gate, Tensor beta, Tensor states, "
    f"{_TABLES}) -> Tensor"
)
_library.define(
    f"paged_selective_scan(Tensor dt, Tensor B, Tensor input, Tensor C, Tensor states, Tensor A, {_TABLES}) -> Tensor"
)
_library.impl("paged_convolution", lambda rows, *others: torch.zeros_like(rows), "CompositeExplicitAutograd")
for _name in ("paged_delta_rule", "paged_selective_scan"):
    _library.impl(_name, lambda a, b, rows, *others: torch.zeros_like(rows), "CompositeExplicitAutograd")
