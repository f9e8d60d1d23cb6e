"""Convert a transformers model to an OpenVINO graph with paged attention. No files are involved.

The graph contains no large weights. It has an input for each of them; `weights.attach_weights`
replaces this input by a constant in the model's own memory.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from antiphon.accel.engines.openvino.paged_attention import OPERATION, PAGED, Tracing, to_openvino, tracing
from antiphon.accel.engines.openvino.paged_inputs import ATTENTION, BLOCK_SIZE, STATE_TABLES, STATES, TABLES, CacheShape
from antiphon.accel.engines.openvino.state_layers import TRANSLATIONS, StateTracing
from antiphon.accel.engines.openvino.weights import INPUT_PREFIX, large_weights
from antiphon.accel.engines.torch.draft_states import follow_drafts, replaced_functions
from antiphon.accel.engines.torch.traits import Traits

if TYPE_CHECKING:
    import openvino

INPUTS = ("input_ids", "position_ids", "rows", *TABLES)
"""Inputs of a graph besides its KV cache. ``rows`` are the rows whose logits are returned."""

EXPERTS = "batched_mm"
"""Implementation of mixture-of-experts layers in transformers: the only one whose trace is valid for any routing."""

LINEAR = "antiphon::linear"
"""Name of the operation that represents a linear layer in the traced graph."""


class UnsupportedModelError(ValueError):
    """The OpenVINO engine cannot run the model; the message has the reason."""


@torch.no_grad()
def paged_model(model: PreTrainedModel, traits: Traits) -> openvino.Model:
    """Convert a model to a graph with paged attention, without reading or copying its large weights.

    The graph's inputs are `INPUTS`, then ``key_cache.i`` and ``value_cache.i`` for each attention
    layer. If there are layers with state, `STATE_TABLES` and an input for each state (`STATES`)
    follow. The last inputs are the large weights, named by `INPUT_PREFIX` and the parameter's name.
    The output is ``logits`` in float32, shape (1, len(rows), vocab).

    Args:
        model: The loaded model, which is not changed.

    Raises:
        UnsupportedModelError: The model's attention or one of its operations cannot be converted.
    """
    if (reason := unsupported_reason(traits)) is not None:
        raise UnsupportedModelError(reason)
    weights = large_weights(model)
    traced = with_placeholders(model)
    try:
        traced.set_attn_implementation(PAGED)
        if getattr(traced.config, "_experts_implementation", None) is not None:
            traced.set_experts_implementation(EXPERTS)
        if traits.state_kinds:
            follow_drafts(traced)
        heads, states = _cache_shapes(traced)
        arguments = WeightArguments(traced, list(weights))
        forward = _Forward(traced, windows_of(traits), arguments)
        graph = _graph(forward, heads, states)
    except UnsupportedModelError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UnsupportedModelError(f"it cannot be converted ({type(error).__name__}: {first[:200]})") from error
    _name(graph, heads, states, weights)
    return graph


def unsupported_reason(traits: Traits) -> str | None:
    """Return why a model with these traits cannot be converted, or None if conversion may be tried."""
    if traits.level != "tree":
        return traits.reason
    if any(reach.chunk for reach in traits.attention_spans.values()):
        return "it attends within chunks, which paged attention does not know"
    return None


def windows_of(traits: Traits) -> list[int]:
    """Return the sliding window of each attention layer in tokens; 0 for none."""
    spans = traits.attention_spans
    return [spans[kind].window or 0 for kind in traits.layer_kinds if kind in spans]


class WeightArguments:
    """Turns large weights into arguments of the traced function, and so into inputs of the graph.

    Args:
        model: The model with placeholders, see `with_placeholders`.
        names: Names of the large weights, in the order of the arguments.
    """

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        parameters = dict(model.named_parameters())
        self.placeholders = [parameters[name].data for name in names]
        places: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                places.setdefault(id(parameter), []).append((module._parameters, name))
        self._places = [places[id(parameters[name])] for name in names]  # several for a tied weight

    def __len__(self) -> int:
        return len(self.placeholders)

    def assign(self, weights: Sequence[Tensor]) -> None:
        """Make the model use these tensors."""
        for weight, places in zip(weights, self._places, strict=True):
            for parameters, name in places:
                parameters[name] = weight


class _Forward:
    """Wraps the model as a function of tensors only, including large weights, so that it can be traced.

    Each row of a forward pass is traced as a sequence of one token. So the model's transpositions
    of rows and heads move no data, and OpenVINO removes them.

    Args:
        windows: Sliding window of each layer in tokens, 0 for none.

    Raises:
        UnsupportedModelError: The model has no LM head.
    """

    def __init__(self, model: PreTrainedModel, windows: Sequence[int], weights: WeightArguments) -> None:
        self.model = model
        self.windows = windows
        self.weights = weights
        if (head := model.get_output_embeddings()) is None:
            raise UnsupportedModelError("it has no LM head")
        self._head: torch.nn.Module = head

    def __call__(self, input_ids: Tensor, position_ids: Tensor, rows: Tensor, *others: Tensor) -> Tensor:
        """Return the logits after ``rows``.

        ``others`` are, in this order: the tensors of `TABLES`, the KV cache, the tensors of
        `STATE_TABLES` and the states (if the model has states), and the large weights.
        """
        first = len(others) - len(self.weights)
        self.weights.assign(others[first:])
        start = len(TABLES) + 2 * len(self.windows)
        tables, caches, states = others[: len(TABLES)], others[len(TABLES) : start], others[start:first]
        recurrent = StateTracing(states[len(STATE_TABLES) :], states[: len(STATE_TABLES)])
        attention = tracing(Tracing(caches, tables, self.windows))
        selection = self._head.register_forward_pre_hook(lambda _, hidden: hidden[0][rows].transpose(0, 1))
        with attention, replaced_functions(recurrent.functions), SymbolicLinear():
            logits: Tensor = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
        selection.remove()
        return logits


class SymbolicLinear(TorchFunctionMode):
    """Records linear layers in the trace without computing them, so that placeholders are not expanded to matrices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear:
            return func(*args, **(kwargs or {}))
        return _linear(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.antiphon.linear(input, weight)
    return product if bias is None else product + bias


def _linear_to_openvino(context: Any) -> list[Any]:
    from openvino import opset13

    return [opset13.matmul(context.get_input(0), context.get_input(1), False, True).output(0)]


def with_placeholders(model: PreTrainedModel) -> PreTrainedModel:
    """Return a float32 copy whose large weights are placeholders: one number, expanded to the weight's shape."""
    large = {id(weight) for weight in large_weights(model).values()}
    memo: dict[int, Any] = {
        id(weight): torch.nn.Parameter(
            torch.zeros(()).expand(weight.shape) if id(weight) in large else weight.detach().float(),
            requires_grad=False,
        )
        for weight in model.parameters()
    }
    copied: PreTrainedModel = copy.deepcopy(model, memo).float().eval()
    return copied


def _cache_shapes(model: PreTrainedModel) -> tuple[list[CacheShape], list[tuple[int, ...]]]:
    """Run a forward pass, and return each attention layer's cache shape and each state's shape."""
    ids, recurrent = torch.ones((5, 1), dtype=torch.long), StateTracing()
    with tracing(Tracing()) as seen, replaced_functions(recurrent.functions), SymbolicLinear():
        model(input_ids=ids, position_ids=torch.arange(5)[:, None], use_cache=False)
    if not seen.shapes and not recurrent.shapes:
        raise UnsupportedModelError("its attention does not go through transformers' interface of attention functions")
    return seen.shapes, recurrent.shapes


def _graph(forward: _Forward, heads: Sequence[CacheShape], states: Sequence[tuple[int, ...]]) -> openvino.Model:
    """Trace the model and convert the trace with OpenVINO's frontend."""
    if len(forward.windows) != len(heads):
        raise UnsupportedModelError(f"it declares {len(forward.windows)} layers, and {len(heads)} attend")
    example = (
        torch.ones((5, 1), dtype=torch.long),
        torch.arange(5)[:, None],
        torch.tensor([1, 4]),
        *(
            torch.zeros(() if name == "max_context_len" else 1, dtype=torch.uint8 if name == "qq_bias" else torch.int32)
            for name in TABLES
        ),
        *(
            torch.zeros((1, own.num_heads, BLOCK_SIZE, size))
            for own in heads
            for size in (own.key_size, own.value_size)
        ),
        *(_state_table(name) for name in STATE_TABLES if states),
        *(torch.zeros((1, *shape)) for shape in states),
    )
    translations = {OPERATION: to_openvino, **TRANSLATIONS}
    graph = convert(lambda *tensors: forward(*tensors), example, forward.weights, translations)
    _join_reshapes(graph)
    return graph


def _join_reshapes(graph: openvino.Model) -> None:
    """If a model splits attention's output into heads and joins them again, reshape it once."""
    from openvino import opset13

    for operation in graph.get_ops():
        if operation.get_type_name() != ATTENTION:
            continue
        output = operation.output(0)
        (divided,) = (reader.get_node() for reader in output.get_target_inputs())
        for reader in divided.output(0).get_target_inputs():
            joined = reader.get_node()
            if joined.get_type_name() == "Reshape" and joined.get_output_partial_shape(0).rank.get_length() == 3:
                heads, size = (each.get_length() for each in list(divided.get_output_partial_shape(0))[2:])
                shape = opset13.constant(np.array([-1, 1, heads * size], dtype=np.int64))
                joined.input(0).replace_source_output(output)
                joined.input(1).replace_source_output(shape.output(0))


def _state_table(name: str) -> Tensor:
    return torch.arange(5) if name in ("state_rows", "state_outputs") else torch.zeros(1, dtype=torch.int32)


def convert(
    function: Callable[..., Any],
    example: Sequence[Tensor],
    weights: WeightArguments,
    translations: Mapping[str, Callable[[Any], list[Any]]] | None = None,
) -> openvino.Model:
    """Trace a function of tensors and convert the trace with OpenVINO's frontend.

    Args:
        function: The function; its last arguments are the large weights.
    """
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch import ConversionExtension
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the self-test finds actual errors
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            function, (*example, *weights.placeholders), check_trace=False, strict=False
        )
        frontend = FrontEndManager().load_by_framework("pytorch")
        for operation, translate in ({LINEAR: _linear_to_openvino} | dict(translations or {})).items():
            frontend.add_extension(ConversionExtension(operation, translate))
        # The frontend holds no reference to the decoder, so a variable keeps it during the conversion.
        decoder = TorchScriptPythonDecoder(traced)
        loaded = frontend.load(decoder)
        for place, weight in zip(loaded.get_inputs()[len(example) :], weights.placeholders, strict=True):
            loaded.set_partial_shape(place, openvino.PartialShape(list(weight.shape)))  # some operations need it
            loaded.set_element_type(place, openvino.Type.f32)
        return frontend.convert(loaded)


def _name(
    graph: openvino.Model,
    heads: Sequence[CacheShape],
    states: Sequence[tuple[int, ...]],
    weights: Mapping[str, Tensor],
) -> None:
    """Set names and shapes of inputs and output."""
    memory = {
        f"{states}_cache.{layer}": [-1, own.num_heads, BLOCK_SIZE, size]
        for layer, own in enumerate(heads)
        for states, size in (("key", own.key_size), ("value", own.value_size))
    }
    recurrent = {name: [-1] for name in STATE_TABLES if states}
    recurrent |= {f"{STATES}{number}": [-1, *shape] for number, shape in enumerate(states)}
    flat = {name: [-1, 1] if name in ("input_ids", "position_ids") else [-1] for name in INPUTS}
    own = {INPUT_PREFIX + name: list(weight.shape) for name, weight in weights.items()}
    shapes = flat | {"max_context_len": []} | memory | recurrent | own
    name_ports(graph, shapes, ["logits"])


def name_ports(graph: openvino.Model, shapes: Mapping[str, list[int]], outputs: Sequence[str]) -> None:
    """Set names and shapes of the inputs, in their order, and the names of the outputs."""
    import openvino

    for given, (name, shape) in zip(graph.inputs, shapes.items(), strict=True):
        given.get_tensor().set_names({name})
        given.get_node().set_friendly_name(name)
        given.get_node().set_partial_shape(openvino.PartialShape(shape))
    for output, name in zip(graph.outputs, outputs, strict=True):
        output.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()


_library: Any = torch.library.Library("antiphon", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch leaves it untyped
_library.define("linear(Tensor input, Tensor weight) -> Tensor")
_library.impl(
    "linear",
    lambda input, weight: input.new_zeros((*input.shape[:-1], weight.shape[0])),
    "CompositeExplicitAutograd",
)
