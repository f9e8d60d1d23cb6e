"""Export of a transformers model for OpenVINO GenAI: one graph whose KV cache is the graph's state.

The export has the same weights as our own engine's graph, so only the programs differ. It is kept in the user's cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from antiphon.accel.engines.openvino.conversion import (
    SymbolicLinear,
    UnsupportedModelError,
    WeightArguments,
    convert,
    name_ports,
    unsupported_reason,
    windows_of,
    with_placeholders,
)
from antiphon.accel.engines.openvino.store import GRAPH, fingerprint, folder_of, store_graph
from antiphon.accel.engines.openvino.weights import INPUT_PREFIX, Owners, attach_weights, large_weights
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.loading import checkpoint_of
from antiphon.accel.files import verified_folder

if TYPE_CHECKING:
    import openvino

STATEFUL = "antiphon_stateful"
"""Name of the exported attention in transformers' `AttentionInterface`."""

PAST, PRESENT = "past_key_values", "present"
"""Name prefixes of states that GenAI and OpenVINO's transformations expect."""

UNSUPPORTED = ("softcap", "position_bias", "s_aux")
"""Options of attention that the export does not support; a model that uses one is refused."""

HALF_WEIGHTS = re.compile(r'(<data destination_type="f32" />)(?=\s*<input>\s*<port id="0" precision="(?:BF16|FP16)">)')
"""The conversion of 16-bit weights to float32 in a stored graph."""

DECOMPRESSION = '<rt_info><attribute name="decompression" version="0" /></rt_info>'
"""Marks such a conversion, as OpenVINO's own exporters do. Without the mark, float32 weights would be kept and read,
which makes a step of few rows half as long again. `openvino.save_model` does not write marks that Python has set.
"""


_cache: ContextVar[tuple[Sequence[Tensor], list[Tensor]]] = ContextVar("cache")
"""KV cache during tracing: past tensors that attention reads, and present tensors that it appends."""


def export_stateful(
    model: PreTrainedModel,
    kind: str = "stateful",
    change: Callable[[openvino.Model], None] = lambda graph: None,
) -> Path:
    """Export the model unless its export exists; return the folder, which holds ``graph.xml``.

    Args:
        kind: Name of this kind of export in the cache.
        change: Changes the graph before it is stored.

    Raises:
        ValueError: the model cannot be exported.
        OSError: the export cannot be written to the cache.
    """

    def write(folder: Path) -> None:
        owners: Owners = []
        graph = stateful_model(model, owners)
        change(graph)
        store_graph(folder, graph)
        stored = folder / GRAPH
        stored.write_text(HALF_WEIGHTS.sub(rf"\1{DECOMPRESSION}", stored.read_text("utf-8")), encoding="utf-8")

    return verified_folder(folder_of(f"{fingerprint(model)}-{kind}-marked"), write)


@torch.no_grad()
def stateful_model(model: PreTrainedModel, owners: Owners) -> openvino.Model:
    """Convert the model to a graph of ``input_ids`` and ``position_ids`` (batch, tokens), and ``beam_idx`` (batch).

    Args:
        owners: Gets the owners of the weights' memory, which the caller keeps as long as the graph.

    Raises:
        ValueError: the model's attention cannot be exported.
    """
    traits = traits_of(model)
    obstacle = unsupported_reason(traits)
    if obstacle is None and any(windows_of(traits)):
        obstacle = "it has sliding windows"
    if obstacle is not None:
        raise UnsupportedModelError(f"{type(model).__name__} cannot be exported for OpenVINO GenAI: {obstacle}.")
    weights = large_weights(model)
    traced = with_placeholders(model)
    traced.set_attn_implementation(STATEFUL)
    graph, past = _traced_graph(traced, list(weights))
    _name_inputs_and_outputs(graph, past, weights)
    checkpoint = checkpoint_of(model)
    owners.extend(attach_weights(graph, model, [] if checkpoint is None else [each.path for each in checkpoint.files]))
    return _make_stateful(graph, len(past) // 2)


class _Step:
    """One forward pass as a function of tensors: returns logits and the KV cache of the whole sequence."""

    def __init__(self, model: PreTrainedModel, weights: WeightArguments) -> None:
        self.model = model
        self.weights = weights

    def __call__(self, input_ids: Tensor, position_ids: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        first = len(others) - len(self.weights)
        self.weights.assign(others[first:])
        with _tracing(others[:first]) as present, SymbolicLinear():
            logits: Tensor = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
        return logits, *present


def _traced_graph(model: PreTrainedModel, names: Sequence[str]) -> tuple[openvino.Model, list[Tensor]]:
    """Trace the model and convert it; return the graph and the past keys and values that it was traced with."""
    from openvino._offline_transformations import apply_moc_transformations

    ids, positions = torch.ones((2, 3), dtype=torch.long), torch.arange(4, 7).expand(2, 3)
    with _tracing() as present, SymbolicLinear():
        model(input_ids=ids, position_ids=positions, use_cache=False)
    past = [each.new_zeros((2, each.shape[1], 4, each.shape[3])) for each in present]
    weights = WeightArguments(model, names)
    step = _Step(model, weights)
    graph = convert(lambda *tensors: step(*tensors), (ids, positions, *past), weights)
    apply_moc_transformations(graph, cf=False)  # as OpenVINO's own converter does
    return graph, past


def _name_inputs_and_outputs(graph: openvino.Model, past: Sequence[Tensor], weights: Mapping[str, Tensor]) -> None:
    """Set names and shapes of all inputs and names of all outputs."""
    states = _state_names(len(past) // 2)
    shapes = {"input_ids": [-1, -1], "position_ids": [-1, -1]}
    shapes |= {
        f"{PAST}.{state}": [-1, each.shape[1], -1, each.shape[3]] for state, each in zip(states, past, strict=True)
    }
    shapes |= {INPUT_PREFIX + name: list(weight.shape) for name, weight in weights.items()}
    name_ports(graph, shapes, ["logits", *(f"{PRESENT}.{state}" for state in states)])


def _state_names(layers: int) -> list[str]:
    return [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]


def _make_stateful(graph: openvino.Model, layers: int) -> openvino.Model:
    """Turn past and present into states of the graph, initially empty; ``beam_idx`` reorders the sequences."""
    from openvino import opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    beams = opset13.parameter([-1], dtype=np.int32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    graph.add_parameters([beams])
    names = _state_names(layers)
    for name in names:
        past = graph.input(f"{PAST}.{name}")
        readers = list(past.get_target_inputs())
        chosen = opset13.gather(past, beams, opset13.constant(np.int64(0)))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    graph.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(graph, {f"{PAST}.{name}": f"{PRESENT}.{name}" for name in names})
    ids = graph.input("input_ids")
    batch = opset13.gather(opset13.shape_of(ids, "i64"), opset13.constant([0]), opset13.constant(np.int64(0)))
    for operation in graph.get_ops():
        if operation.get_type_name() == "ReadValue":
            _, heads, _, size = operation.get_output_partial_shape(0)
            shape = opset13.concat(
                [batch, *(opset13.constant([each]) for each in (heads.get_length(), 0, size.get_length()))], axis=0
            )
            operation.set_arguments([opset13.broadcast(opset13.constant(np.float32(0)), shape).output(0)])
    graph.validate_nodes_and_infer_types()
    return graph


@contextmanager
def _tracing(past: Sequence[Tensor] = ()) -> Iterator[list[Tensor]]:
    """Make the exported attention use these past keys and values; yield the list that it appends its own to."""
    present: list[Tensor] = []
    token = _cache.set((past, present))
    try:
        yield present
    finally:
        _cache.reset(token)


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend to past and present keys alike; GenAI inserts the causal mask when it loads the graph.

    GenAI looks for a pattern that contains a mask and ignores the mask's values, so any mask will do.
    """
    if given := [name for name in UNSUPPORTED if options.get(name) is not None]:
        raise UnsupportedModelError(f"{type(module).__name__} uses {', '.join(given)}, which is not exported.")
    past, present = _cache.get()
    layer = len(present)
    if past:
        key, value = (torch.cat([past[layer + at], each], dim=2) for at, each in enumerate((key, value)))
    present += [key, value]
    keys, values = (_repeated(each, int(query.shape[1]) // int(each.shape[1])) for each in (key, value))
    mask = torch.zeros((query.shape[0], 1, query.shape[2], key.shape[2]))
    attended = scaled_dot_product_attention(query, keys, values, mask, scale=options.get("scaling"))
    return attended.transpose(1, 2), None


def _repeated(states: Tensor, times: int) -> Tensor:
    """Repeat each KV head for the query heads that share it; only the sequence length stays dynamic in the trace."""
    if times == 1:
        return states
    heads, size = int(states.shape[1]), int(states.shape[3])
    return states.unsqueeze(2).expand(-1, -1, times, -1, -1).reshape(-1, heads * times, states.shape[2], size)


def _no_mask(*arguments: Any, **options: Any) -> None:
    """Return no mask: the exported attention makes its own."""


AttentionInterface.register(STATEFUL, _attend)
AttentionMaskInterface.register(STATEFUL, _no_mask)
