"""Converts a model of transformers to an OpenVINO graph with paged attention. Reads and writes no files."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.engines.openvino.paged_attention import (
    BLOCK_SIZE,
    OPERATION,
    PAGED,
    TABLES,
    CacheShape,
    Tracing,
    to_openvino,
    tracing,
)
from antiphon.accel.engines.torch.traits import Traits

if TYPE_CHECKING:
    import openvino

INPUTS = ("input_ids", "position_ids", "rows", *TABLES)
"""Inputs of a graph besides its KV cache. ``rows`` are the rows whose logits are returned."""

EXPERTS = "batched_mm"
"""Implementation of mixture-of-experts layers in transformers: the only one whose trace is valid for any routing."""

SMALL = 4096
"""Tensors with fewer elements are not stored in half precision."""


class UnsupportedModelError(ValueError):
    """The OpenVINO engine cannot run the model; the message gives the user the reason."""


@torch.no_grad()
def paged_model(model: PreTrainedModel, traits: Traits) -> openvino.Model:
    """Convert a model to a graph with paged attention.

    Its inputs are `INPUTS` and ``key_cache.i`` and ``value_cache.i`` for each layer; its output is ``logits`` in
    float32, shape (1, len(rows), vocab). Weights whose values are exact in half precision are stored in it.

    Args:
        model: The loaded model, which is not changed.
        traits: Its traits.

    Raises:
        UnsupportedModelError: The model's attention or one of its operations cannot be converted.
    """
    if (reason := unsupported_reason(traits)) is not None:
        raise UnsupportedModelError(reason)
    traced = _float32(model)
    try:
        traced.set_attn_implementation(PAGED)
        _trace_experts(traced)
        heads = _heads(traced)
        graph = _graph(traced, heads, windows_of(traits), sliced=traits.takes_logits_to_keep)
    except UnsupportedModelError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UnsupportedModelError(f"it cannot be converted ({type(error).__name__}: {first[:200]})") from error
    _name(graph, heads)
    _shrink(graph)
    return graph


def unsupported_reason(traits: Traits) -> str | None:
    """Return why a model with these traits cannot be converted, or None if conversion may be tried."""
    if traits.level != "tree":
        return traits.reason
    if traits.rope is not None:
        return "its rotary frequencies depend on the length of the text"
    if any(reach.chunk for reach in traits.attention_spans.values()):
        return "it attends within chunks, which paged attention does not know"
    return None


def windows_of(traits: Traits) -> list[int]:
    """Return the sliding window of each layer in tokens; 0 for none."""
    return [traits.attention_spans[kind].window or 0 for kind in traits.layer_kinds]


class _Forward(torch.nn.Module):
    """The model as a function of tensors only, so that it can be traced."""

    def __init__(self, model: PreTrainedModel, windows: Sequence[int], *, sliced: bool) -> None:
        super().__init__()
        self.model = model
        self.windows = windows
        self.sliced = sliced

    def forward(self, input_ids: Tensor, position_ids: Tensor, rows: Tensor, *others: Tensor) -> Tensor:
        """Return the logits after ``rows``; ``others`` are the tensors named in `TABLES`, then the KV cache."""
        tables, caches = others[: len(TABLES)], others[len(TABLES) :]
        kept = {"logits_to_keep": rows} if self.sliced else {}
        with tracing(Tracing(caches, tables, self.windows)):
            logits: Tensor = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False, **kept).logits
        return logits if self.sliced else logits[:, rows]


def _float32(model: PreTrainedModel) -> PreTrainedModel:
    """Return a float32 copy whose configuration can be changed; it shares the weights that are float32 already."""
    memo: dict[int, Any] = {
        id(weights): torch.nn.Parameter(weights.detach().float(), requires_grad=False) for weights in model.parameters()
    }
    copied: PreTrainedModel = copy.deepcopy(model, memo).float().eval()
    return copied


def _trace_experts(model: PreTrainedModel) -> None:
    if getattr(model.config, "_experts_implementation", None) is not None:
        model.set_experts_implementation(EXPERTS)


def _heads(model: PreTrainedModel) -> list[CacheShape]:
    """Return the cache shape of every layer, recorded during a forward pass."""
    ids = torch.ones((1, 5), dtype=torch.long)
    with tracing(Tracing()) as seen:
        model(input_ids=ids, position_ids=torch.arange(5)[None], use_cache=False)
    if not seen.shapes:
        raise UnsupportedModelError("its attention does not go through transformers' interface of attention functions")
    return seen.shapes


def _graph(
    model: PreTrainedModel, heads: Sequence[CacheShape], windows: Sequence[int], *, sliced: bool
) -> openvino.Model:
    """Trace the model and convert the trace with OpenVINO's frontend."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch import ConversionExtension
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    if len(windows) != len(heads):
        raise UnsupportedModelError(f"it declares {len(windows)} layers, and {len(heads)} attend")
    example = (
        torch.ones((1, 5), dtype=torch.long),
        torch.arange(5)[None],
        torch.tensor([1, 4]),
        *(torch.zeros(_shape(name), dtype=torch.uint8 if name == "qq_bias" else torch.int32) for name in TABLES),
        *(
            torch.zeros((1, own.num_heads, BLOCK_SIZE, size))
            for own in heads
            for size in (own.key_size, own.value_size)
        ),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the self-test finds actual errors
        forward = _Forward(model, windows, sliced=sliced)
        traced = torch.jit.trace(forward, example, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
        frontend = FrontEndManager().load_by_framework("pytorch")
        frontend.add_extension(ConversionExtension(OPERATION, to_openvino))
        # The frontend holds no reference to the decoder, so a variable keeps it during the conversion.
        decoder = TorchScriptPythonDecoder(traced)
        return frontend.convert(frontend.load(decoder))


def _shape(table: str) -> tuple[int, ...]:
    return () if table == "max_context_len" else (1,)


def _name(graph: openvino.Model, heads: Sequence[CacheShape]) -> None:
    """Set names and shapes of inputs and output."""
    import openvino

    memory = {
        f"{states}_cache.{layer}": [-1, own.num_heads, BLOCK_SIZE, size]
        for layer, own in enumerate(heads)
        for states, size in (("key", own.key_size), ("value", own.value_size))
    }
    flat = {name: [1, -1] if name in ("input_ids", "position_ids") else [-1] for name in INPUTS}
    shapes = flat | {"max_context_len": []} | memory
    for given, (name, shape) in zip(graph.inputs, shapes.items(), strict=True):
        given.get_tensor().set_names({name})
        given.get_node().set_friendly_name(name)
        given.get_node().set_partial_shape(openvino.PartialShape(shape))
    graph.outputs[0].get_tensor().set_names({"logits"})
    graph.validate_nodes_and_infer_types()


def _shrink(graph: openvino.Model) -> None:
    """Store weights as bfloat16 if that is exact: file size and memory traffic are halved."""
    import openvino
    from openvino import opset13

    for constant in graph.get_ordered_ops():
        if constant.get_type_name() != "Constant" or constant.get_element_type() != openvino.Type.f32:
            continue
        shape = list(constant.get_output_shape(0))
        if len(shape) < 2 or np.prod(shape) < SMALL:
            continue
        weights = torch.from_numpy(np.array(constant.get_data()))
        half = weights.bfloat16()
        if not torch.equal(half.float(), weights):
            continue
        tensor = openvino.Tensor(openvino.Type.bf16, openvino.Shape(shape))
        tensor.data.view(np.int16)[...] = half.view(torch.int16).numpy()
        kept = openvino.op.Constant(tensor)
        kept.set_friendly_name(constant.get_friendly_name())
        again = opset13.convert(kept, "f32")
        # Without this mark OpenVINO would convert the weights to float32 when it loads the graph.
        again.get_rt_info()["decompression_0"] = ""
        for reader in list(constant.output(0).get_target_inputs()):
            reader.replace_source_output(again.output(0))
