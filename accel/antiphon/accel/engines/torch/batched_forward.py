"""Run one forward pass over several sequences, in which each row attends only to its own sequence.

All layers except attention compute the concatenated rows of all sequences, so each weight is read
once. Sequences are not padded and have separate caches, so they can join and leave the batch
between any two forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.tree import build_tree
from antiphon.accel.engines.torch.attention import (
    Attention,
    accepts_attention,
    implementation_of,
    override_attention,
    varying_shapes,
)
from antiphon.accel.engines.torch.packed_attention import RAGGED, packed_attention
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.traits import Traits

BatchMode: TypeAlias = Literal["ragged", "concatenated"]
"""How a batch attends. "ragged": one attention call per sequence. "concatenated": one call with a
block-diagonal mask over the keys of all sequences, if the model's attention cannot be replaced."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one sequence in a batched forward pass.

    Attributes:
        start: Index of the first row in the batch.
        end: Index after the last row.
        masks: For each kind of layer, the mask of the rows, shape (1, 1, rows, slots).
    """

    sequence: TorchSequence
    start: int
    end: int
    masks: dict[str, Tensor]


class BatchedCache(Cache):
    """A cache that combines the caches of several sequences: each row is written to the cache of its sequence.

    In mode "concatenated", a layer returns the concatenated keys and values of all sequences. In
    mode "ragged", nothing is copied: `ragged_attention` reads the layer's keys and values from
    ``states``.
    """

    def __init__(self, segments: Sequence[Segment], mode: BatchMode) -> None:
        super().__init__(layers=segments[0].sequence.cache.layers)
        self.segments = segments
        self.mode = mode
        self.states: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the rows (1, heads, rows, size) of each sequence to its own cache."""
        self.states[layer_idx] = [
            segment.sequence.cache.update(
                key_states[:, :, segment.start : segment.end],
                value_states[:, :, segment.start : segment.end],
                layer_idx,
                *args,
                **kwargs,
            )
            for segment in self.segments
        ]
        if self.mode == "ragged":
            return key_states, value_states
        keys, values = zip(*self.states[layer_idx], strict=True)
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)


def ragged_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Attention:
    """In a batch, compute packed attention for each sequence. Otherwise call "sdpa".

    Args:
        query: Shape (1, heads, rows, size).
        key: Not used in a batch, because the keys are in the caches of the sequences.
        value: Not used in a batch.
        attention_mask: A placeholder that carries the batch, see `_mask`.

    Returns:
        Output of shape (1, rows, heads, size), and no attention weights.
    """
    batch: tuple[BatchedCache, str] | None = None if attention_mask is None else vars(attention_mask).get(RAGGED)
    if batch is None:
        sdpa: Callable[..., Attention] = AttentionInterface()["sdpa"]
        return sdpa(module, query, key, value, attention_mask, **options)
    cache, kind = batch
    states = cache.states[cast(int, module.layer_idx)]
    outputs = [
        packed_attention(module, query[:, :, each.start : each.end], keys, values, each.masks[kind], **options)[0]
        for each, (keys, values) in zip(cache.segments, states, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def batch_modes(model: PreTrainedModel) -> tuple[BatchMode, ...]:
    """Return the modes to try with this model, the fastest first."""
    if implementation_of(model) == "sdpa" and accepts_attention(model, RAGGED):
        return ("ragged", "concatenated")
    return ("concatenated",)


def batched_forward(fed: Sequence[tuple[TorchSequence, Tokens, Draft]], mode: BatchMode) -> list[Tensor]:
    """Run one forward pass over several sequences of one model that verifies trees.

    Args:
        fed: The sequences with their pending tokens and drafts. Before the prefill, the whole prompt is pending.

    Returns:
        For each sequence the logits after its last pending token and every draft row, of shape (1 + rows, vocab).
    """
    model, traits = fed[0][0].model, fed[0][0].traits
    # 1. Concatenate the rows of all sequences. Each row keeps its position within its own sequence.
    segments = _segments(fed)
    depths = [build_tree(len(pending), draft.parents).depths for _, pending, draft in fed]
    positions = [each.sequence.positions(torch.from_numpy(d)) for each, d in zip(segments, depths, strict=True)]
    tokens = [token for _, pending, draft in fed for token in (*pending, *draft.tokens)]
    # 2. Logits are needed after each root (last pending token) and each draft row.
    roots = [each.start + len(pending) - 1 for each, (_, pending, _) in zip(segments, fed, strict=True)]
    rows = [list(range(root, each.end)) for root, each in zip(roots, segments, strict=True)]
    cache = BatchedCache(segments, mode)
    arguments: dict[str, Any] = {traits.cache_argument or "past_key_values": cache, "use_cache": True}
    wanted = torch.tensor([row for own in rows for row in own], device=model.device)
    if traits.takes_logits_to_keep:
        arguments["logits_to_keep"] = wanted
    if layers := sorted({layer for each in segments for layer in each.sequence.hidden_states.layers}):
        arguments["output_hidden_states"] = layers
    # 3. Forward pass.
    attention = RAGGED if mode == "ragged" else implementation_of(model)
    masks = {kind: _mask(cache, kind, traits, model.dtype) for kind in traits.attention_spans}
    with torch.inference_mode(False), torch.no_grad(), override_attention(model, attention), varying_shapes(model):
        outputs = model(
            input_ids=torch.tensor([tokens], device=model.device),
            position_ids=torch.cat(positions)[None].to(model.device),
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            **arguments,
        )
    logits = outputs.logits[0] if traits.takes_logits_to_keep else outputs.logits[0, wanted]
    for segment in segments:
        states = segment.sequence.hidden_states
        states.note([outputs.hidden_states[layer][0, segment.start : segment.end] for layer in states.layers])
        if not segment.sequence.is_prefilled:
            segment.sequence.inspect_cache()
    return list(logits.split([len(own) for own in rows]))


def _segments(fed: Sequence[tuple[TorchSequence, Tokens, Draft]]) -> list[Segment]:
    ends = list(accumulate((len(pending) + len(draft) for _, pending, draft in fed), initial=0))
    segments: list[Segment] = []
    for (sequence, pending, draft), (start, end) in zip(fed, pairwise(ends), strict=True):
        tree = build_tree(len(pending), draft.parents)
        sequence.record(pending, draft)
        masks = {kind: sequence.tree_mask(tree, kind, draft.tokens) for kind in sequence.traits.attention_spans}
        segments.append(Segment(sequence, start, end, masks))
    return segments


def _mask(cache: BatchedCache, kind: str, traits: Traits, dtype: torch.dtype) -> Tensor:
    """Return the mask of one kind of layer. In mode "ragged" it only carries the batch to the attention function."""
    own = [segment.masks[kind] for segment in cache.segments]
    if cache.mode == "ragged":
        mask = own[0].new_ones((1, 1, 1, 1))
        vars(mask)[RAGGED] = (cache, kind)
        return mask
    rows, slots = sum(each.shape[2] for each in own), sum(each.shape[3] for each in own)
    hidden = False if traits.takes_boolean_masks else torch.finfo(dtype).min
    joined = own[0].new_full((1, 1, rows, slots), hidden)
    row = slot = 0
    for each in own:
        joined[..., row : row + each.shape[2], slot : slot + each.shape[3]] = each
        row, slot = row + each.shape[2], slot + each.shape[3]
    return joined


AttentionInterface.register(RAGGED, ragged_attention)
AttentionMaskInterface.register(RAGGED, sdpa_mask)
