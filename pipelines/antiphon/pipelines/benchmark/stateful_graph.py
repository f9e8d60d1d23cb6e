"""Export of a transformers model for OpenVINO GenAI: one graph whose KV cache is the graph's state.

The export has the same weights as our own engine's graph, so only the programs differ. It is kept in the user's cache.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from antiphon.accel.engines.openvino.conversion import UnsupportedModelError, unsupported_reason, windows_of
from antiphon.accel.engines.openvino.store import GRAPH, fingerprint, folder_of, load_or_convert
from antiphon.accel.engines.torch.engine import traits_of

if TYPE_CHECKING:
    import openvino

STATEFUL = "antiphon_stateful"
"""Name of the exported attention in transformers' `AttentionInterface`."""

PAST, PRESENT = "past_key_values", "present"
"""Name prefixes of states that GenAI and OpenVINO's transformations expect."""

UNSUPPORTED = ("softcap", "position_bias", "s_aux")
"""Options of attention that the export does not support; a model that uses one is refused."""


@dataclass(slots=True)
class _TracedCache:
    """KV cache during tracing: past tensors that attention reads, and present tensors that it appends."""

    past: Sequence[Tensor] = ()
    present: list[Tensor] = field(default_factory=list)


_cache: ContextVar[_TracedCache] = ContextVar("cache")


def export_stateful(model: PreTrainedModel) -> Path:
    """Export the model unless its export exists; return the folder, which holds ``graph.xml``.

    Raises:
        ValueError: the model cannot be exported.
        OSError: the export cannot be written to the cache.
    """
    key = f"{fingerprint(model)}-stateful"
    folder = folder_of(key)
    load_or_convert(folder, lambda: stateful_model(model))
    if not (folder / GRAPH).is_file():
        raise OSError(f"The export for OpenVINO GenAI cannot be kept in {folder}; make room, or make it writable.")
    return folder


@torch.no_grad()
def stateful_model(model: PreTrainedModel) -> openvino.Model:
    """Convert the model to a graph of ``input_ids`` and ``position_ids`` (batch, tokens), and ``beam_idx`` (batch).

    Raises:
        ValueError: the model's attention cannot be exported.
    """
    traits = traits_of(model)
    obstacle = unsupported_reason(traits)
    if obstacle is None and any(windows_of(traits)):
        obstacle = "it has sliding windows"
    if obstacle is not None:
        raise UnsupportedModelError(f"{type(model).__name__} cannot be exported for OpenVINO GenAI: {obstacle}.")
    graph, past = _traced_graph(_exportable_copy(model))
    _name_inputs_and_outputs(graph, past)
    _compress_to_bfloat16(graph)
    return _make_stateful(graph, len(past) // 2)


def _exportable_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the model in float32 with exportable attention and without any packed layers."""
    made: PreTrainedModel = type(model)(copy.deepcopy(model.config)).float().eval()
    made.load_state_dict({name: weights.float() for name, weights in model.state_dict().items()})
    made.set_attn_implementation(STATEFUL)
    return made


class _Step(torch.nn.Module):
    """One forward pass as a function of tensors: returns logits and the KV cache of the whole sequence."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, position_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        with _tracing(past) as cache:
            logits: Tensor = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
        return logits, *cache.present


def _traced_graph(model: PreTrainedModel) -> tuple[openvino.Model, list[Tensor]]:
    """Trace the model and convert it; return the graph and the past keys and values that it was traced with."""
    from openvino._offline_transformations import apply_moc_transformations
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    ids, positions = torch.ones((2, 3), dtype=torch.long), torch.arange(4, 7).expand(2, 3)
    with _tracing() as cache:
        model(input_ids=ids, position_ids=positions, use_cache=False)
    past = [each.new_zeros((2, each.shape[1], 4, each.shape[3])) for each in cache.present]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracer warnings; a test compares the outputs
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            _Step(model), (ids, positions, *past), check_trace=False, strict=False
        )
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)  # must stay alive until the conversion is done
        graph: openvino.Model = frontend.convert(frontend.load(decoder))
        apply_moc_transformations(graph, cf=False)  # as OpenVINO's own converter does
    return graph, past


def _name_inputs_and_outputs(graph: openvino.Model, past: Sequence[Tensor]) -> None:
    """Set names and shapes of all inputs and names of all outputs."""
    import openvino

    states = _state_names(len(past) // 2)
    shapes = [[-1, -1], [-1, -1], *([-1, each.shape[1], -1, each.shape[3]] for each in past)]
    names = ("input_ids", "position_ids", *(f"{PAST}.{state}" for state in states))
    for given, name, shape in zip(graph.inputs, names, shapes, strict=True):
        given.get_tensor().set_names({name})
        given.get_node().set_friendly_name(name)
        given.get_node().set_partial_shape(openvino.PartialShape(shape))
    for result, name in zip(graph.outputs, ("logits", *(f"{PRESENT}.{state}" for state in states)), strict=True):
        result.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()


def _state_names(layers: int) -> list[str]:
    return [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]


def _compress_to_bfloat16(graph: openvino.Model) -> None:
    """Store weights that are exact in bfloat16 as bfloat16, so that GenAI reads half as many bytes."""
    import numpy as np
    import openvino
    from openvino import opset13

    for constant in graph.get_ordered_ops():
        if constant.get_type_name() != "Constant" or constant.get_element_type() != openvino.Type.f32:
            continue
        weights = torch.from_numpy(np.array(constant.get_data()))
        if weights.dim() < 2 or not torch.equal(weights.bfloat16().float(), weights):
            continue
        tensor = openvino.Tensor(openvino.Type.bf16, openvino.Shape(list(weights.shape)))
        tensor.data.view(np.int16)[...] = weights.bfloat16().view(torch.int16).numpy()
        widened = opset13.convert(openvino.op.Constant(tensor), "f32")
        widened.get_rt_info()["decompression_0"] = ""  # otherwise OpenVINO would decompress it when loading
        for reader in list(constant.output(0).get_target_inputs()):
            reader.replace_source_output(widened.output(0))


def _make_stateful(graph: openvino.Model, layers: int) -> openvino.Model:
    """Turn past and present into states of the graph, initially empty; ``beam_idx`` reorders the sequences."""
    import numpy as np
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
def _tracing(past: Sequence[Tensor] = ()) -> Iterator[_TracedCache]:
    """Make the exported attention use these past keys and values until the ``with`` block exits."""
    cache = _TracedCache(past)
    token = _cache.set(cache)
    try:
        yield cache
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
    cache = _cache.get()
    layer = len(cache.present)
    if cache.past:
        key, value = (torch.cat([cache.past[layer + at], each], dim=2) for at, each in enumerate((key, value)))
    cache.present += [key, value]
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
