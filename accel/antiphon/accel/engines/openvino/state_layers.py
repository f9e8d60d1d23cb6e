"""Layers with recurrent or convolutional state: the functions that they call while a model is traced.

Each function becomes an operation of `state_operations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from transformers.activations import ACT2FN

from antiphon.accel.engines.openvino.state_operations import STATE_FUNCTIONS, state_operation


@dataclass(slots=True)
class StateTracing:
    """Input and output of the functions of layers with state while a model is traced.

    Attributes:
        state_pass: The input `STATE_PASS`; None if only shapes are recorded.
        shapes: Shape of the state of each call, recorded in the order of the calls.
    """

    state_pass: Tensor | None = None
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
        output = self._call("AntiphonConvolution", (size, channels), rows, weight.T.contiguous(), bias)
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
        shape = (int(value.shape[2]), int(key.shape[3]), int(value.shape[3]))
        rows = [given[:, 0] for given in (query, key, value, g, beta)]
        output = self._call("AntiphonGatedDeltaRule", shape, *rows)
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
        output = self._call("AntiphonSelectiveScan", shape, *rows, A)
        output = output if D is None else output + rows[2] * D[:, None]
        return (output[:, None], None) if return_final_states else output[:, None]

    def _call(self, name: str, shape: tuple[int, ...], *arguments: Tensor) -> Tensor:
        """Call a function of `STATE_FUNCTIONS` with a state of this shape, and return its output for each row."""
        place = torch.tensor([len(self.shapes), *shape])
        self.shapes.append(shape)
        if self.state_pass is None:
            return torch.zeros_like(arguments[STATE_FUNCTIONS[name].shaped])
        output: Tensor = getattr(torch.ops.antiphon, name)(*arguments, place, self.state_pass)
        return output


def _to_openvino(name: str, context: Any) -> list[Any]:
    inputs = [context.get_input(index) for index in range(context.get_input_size())]
    return [state_operation(name)(inputs).output(0)]


TRANSLATIONS: Mapping[str, Callable[[Any], list[Any]]] = {
    f"antiphon::{name}": partial(_to_openvino, name) for name in STATE_FUNCTIONS
}
"""Translations of the traced operations for OpenVINO's PyTorch frontend."""

_library: Any = torch.library.Library("antiphon", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch leaves it untyped
_WEIGHTS = {"AntiphonConvolution": ("weight", "bias"), "AntiphonSelectiveScan": ("rate",)}
for _name, _function in STATE_FUNCTIONS.items():
    _arguments = [*(f"row{index}" for index in range(_function.num_rows)), *_WEIGHTS.get(_name, ()), "place", "number"]
    _library.define(f"{_name}({', '.join(f'Tensor {each}' for each in _arguments)}) -> Tensor")
    _library.impl(
        _name, lambda *given, shaped=_function.shaped: torch.zeros_like(given[shaped]), "CompositeExplicitAutograd"
    )
