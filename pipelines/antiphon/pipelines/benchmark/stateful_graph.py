"""A model of transformers as OpenVINO GenAI reads it: one graph that holds keys and values of its text as states.

Knows how a model is exported, and no program that runs it. The export is kept in the user's cache, as the graphs of our
own engine are; it has the same weights, so that only the programs differ.
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

from antiphon.accel.engines.openvino.conversion import Unconvertible, obstacle_of, windows_of
from antiphon.accel.engines.openvino.store import GRAPH, fingerprint, folder_of, stored
from antiphon.accel.engines.torch.engine import traits_of

if TYPE_CHECKING:
    import openvino

STATEFUL = "antiphon_stateful"
"""The name under which transformers knows the attention that a model is exported with."""

PAST, PRESENT = "past_key_values", "present"
"""What names of states begin with, as GenAI and the transformations look for them."""

UNSUPPORTED = ("softcap", "position_bias", "s_aux")
"""What some models do to their scores, and an export by this attention would leave out."""


@dataclass(slots=True)
class _Text:
    """What attention is given while a model is traced, and notes: keys and values of each layer in turn."""

    past: Sequence[Tensor] = ()
    present: list[Tensor] = field(default_factory=list)


_text: ContextVar[_Text] = ContextVar("text")


def exported(model: PreTrainedModel) -> Path:
    """The folder of the model's export, made where it is not there yet; the graph in it is ``graph.xml``.

    Raises:
        ValueError: the model cannot be exported.
        OSError: the export cannot be kept.
    """
    key = f"{fingerprint(model)}-stateful"
    folder = folder_of(key)
    stored(folder, lambda: stateful_model(model))
    if not (folder / GRAPH).is_file():
        raise OSError(f"The export for OpenVINO GenAI cannot be kept in {folder}; make room, or make it writable.")
    return folder


@torch.no_grad()
def stateful_model(model: PreTrainedModel) -> openvino.Model:
    """The model as a graph of ``input_ids`` and ``position_ids`` of shape (texts, tokens), and ``beam_idx`` (texts).

    Raises:
        ValueError: the model's attention cannot be exported so.
    """
    traits = traits_of(model)
    obstacle = obstacle_of(traits)
    if obstacle is None and any(windows_of(traits)):
        obstacle = "it has sliding windows"
    if obstacle is not None:
        raise Unconvertible(f"{type(model).__name__} cannot be exported for OpenVINO GenAI: {obstacle}.")
    graph, past = _translated(_of_its_own(model))
    _name(graph, past)
    _halve(graph)
    return _with_states(graph, len(past) // 2)


def _of_its_own(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float32, with the attention that can be exported; what stands in for its layers stays behind."""
    made: PreTrainedModel = type(model)(copy.deepcopy(model.config)).float().eval()
    made.load_state_dict({name: weights.float() for name, weights in model.state_dict().items()})
    made.set_attn_implementation(STATEFUL)
    return made


class _Step(torch.nn.Module):
    """One forward as a function of tensors alone: logits, and keys and values of the whole text."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, position_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        with _reading(past) as text:
            logits: Tensor = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
        return logits, *text.present


def _translated(model: PreTrainedModel) -> tuple[openvino.Model, list[Tensor]]:
    """The traced model as a graph, and keys and values of each layer as it was traced with."""
    from openvino._offline_transformations import apply_moc_transformations
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    ids, positions = torch.ones((2, 3), dtype=torch.long), torch.arange(4, 7).expand(2, 3)
    with _reading() as text:
        model(input_ids=ids, position_ids=positions, use_cache=False)
    past = [each.new_zeros((2, each.shape[1], 4, each.shape[3])) for each in text.present]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever the tracer warns of would show in the texts
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            _Step(model), (ids, positions, *past), check_trace=False, strict=False
        )
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)  # has to live until all is converted
        graph: openvino.Model = frontend.convert(frontend.load(decoder))
        apply_moc_transformations(graph, cf=False)  # as the tool that converts models does: patterns stand plain then
    return graph, past


def _name(graph: openvino.Model, past: Sequence[Tensor]) -> None:
    """Names and shapes of all inputs and outputs."""
    import openvino

    states = _states(len(past) // 2)
    shapes = [[-1, -1], [-1, -1], *([-1, each.shape[1], -1, each.shape[3]] for each in past)]
    names = ("input_ids", "position_ids", *(f"{PAST}.{state}" for state in states))
    for given, name, shape in zip(graph.inputs, names, shapes, strict=True):
        given.get_tensor().set_names({name})
        given.get_node().set_friendly_name(name)
        given.get_node().set_partial_shape(openvino.PartialShape(shape))
    for result, name in zip(graph.outputs, ("logits", *(f"{PRESENT}.{state}" for state in states)), strict=True):
        result.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()


def _states(layers: int) -> list[str]:
    return [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]


def _halve(graph: openvino.Model) -> None:
    """Keep in bfloat16 what is a bfloat16 number anyway: a program that reads half the bytes shall not be slower."""
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
        widened.get_rt_info()["decompression_0"] = ""  # what keeps OpenVINO from unpacking it at once
        for reader in list(constant.output(0).get_target_inputs()):
            reader.replace_source_output(widened.output(0))


def _with_states(graph: openvino.Model, layers: int) -> openvino.Model:
    """Turn past and present into states of the graph, which begin empty; texts may change places by ``beam_idx``."""
    import numpy as np
    from openvino import opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    beams = opset13.parameter([-1], dtype=np.int32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    graph.add_parameters([beams])
    names = _states(layers)
    for name in names:
        past = graph.input(f"{PAST}.{name}")
        readers = list(past.get_target_inputs())
        chosen = opset13.gather(past, beams, opset13.constant(np.int64(0)))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    graph.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(graph, {f"{PAST}.{name}": f"{PRESENT}.{name}" for name in names})
    ids = graph.input("input_ids")
    texts = opset13.gather(opset13.shape_of(ids, "i64"), opset13.constant([0]), opset13.constant(np.int64(0)))
    for operation in graph.get_ops():
        if operation.get_type_name() == "ReadValue":
            _, heads, _, size = operation.get_output_partial_shape(0)
            shape = opset13.concat(
                [texts, *(opset13.constant([each]) for each in (heads.get_length(), 0, size.get_length()))], axis=0
            )
            operation.set_arguments([opset13.broadcast(opset13.constant(np.float32(0)), shape).output(0)])
    graph.validate_nodes_and_infer_types()
    return graph


@contextmanager
def _reading(past: Sequence[Tensor] = ()) -> Iterator[_Text]:
    """Let attention take these keys and values in here."""
    given = _Text(past)
    token = _text.set(given)
    try:
        yield given
    finally:
        _text.reset(token)


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend to the past and the rows alike; who sees whom is put in by the program that reads the graph.

    It needs some mask in the pattern that it looks for, whose numbers it throws away.
    """
    if given := [name for name in UNSUPPORTED if options.get(name) is not None]:
        raise Unconvertible(f"{type(module).__name__} uses {', '.join(given)}, which is not exported.")
    text = _text.get()
    layer = len(text.present)
    if text.past:
        key, value = (torch.cat([text.past[layer + at], each], dim=2) for at, each in enumerate((key, value)))
    text.present += [key, value]
    keys, values = (_repeated(each, int(query.shape[1]) // int(each.shape[1])) for each in (key, value))
    mask = torch.zeros((query.shape[0], 1, query.shape[2], key.shape[2]))
    attended = scaled_dot_product_attention(query, keys, values, mask, scale=options.get("scaling"))
    return attended.transpose(1, 2), None


def _repeated(states: Tensor, times: int) -> Tensor:
    """Heads that several queries share, once for each; all lengths but that of the text are numbers in the trace."""
    if times == 1:
        return states
    heads, size = int(states.shape[1]), int(states.shape[3])
    return states.unsqueeze(2).expand(-1, -1, times, -1, -1).reshape(-1, heads * times, states.shape[2], size)


def _no_mask(*arguments: Any, **options: Any) -> None:
    """The model makes none."""


AttentionInterface.register(STATEFUL, _attend)
AttentionMaskInterface.register(STATEFUL, _no_mask)
