"""One forward over several texts: their rows side by side, each of which attends to the cache of its own text alone.

All other layers compute the rows of all texts together, so a weight is read once for all of them. No text is padded to
another's length, and each keeps the cache that it has alone: texts join and leave between any two forwards.
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
from antiphon.accel.drafting.tree import plant
from antiphon.accel.engines.torch.attention import Attention, accepts, implementation_of, lent
from antiphon.accel.engines.torch.packed import RAGGED, packed_attention
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.traits import Traits

Sharing: TypeAlias = Literal["ragged", "concatenated"]
"""How the rows of several texts attend: text by text, or by one mask over the joined keys of all texts, for models that
keep an attention of their own."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What one text brings to a forward: the rows from ``start`` to ``end`` are its own.

    ``masks`` says by kind of layer which slots each of them sees, (1, 1, rows, slots).
    """

    sequence: TorchSequence
    start: int
    end: int
    masks: dict[str, Tensor]


class SideBySide(Cache):
    """The caches of several texts as one: every row goes to the cache of its own text.

    A layer returns the joined states of all texts where attention is ``concatenated``. Otherwise ``states`` holds those
    of each text for `ragged_attention`, and nothing is copied.
    """

    def __init__(self, segments: Sequence[Segment], sharing: Sharing) -> None:
        super().__init__(layers=segments[0].sequence.cache.layers)
        self.segments = segments
        self.sharing = sharing
        self.states: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows of shape (1, heads, rows, size) of each text to its own cache."""
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
        if self.sharing == "ragged":
            return key_states, value_states
        keys, values = zip(*self.states[layer_idx], strict=True)
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)


def ragged_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Attention:
    """Attend text by text, as packed attention does, where the mask is that of a forward over several texts.

    ``query`` has shape (1, heads, rows, size) and the output (1, rows, heads, size). Any other forward is left to
    "sdpa".
    """
    carried: tuple[SideBySide, str] | None = None if attention_mask is None else vars(attention_mask).get(RAGGED)
    if carried is None:
        sdpa: Callable[..., Attention] = AttentionInterface()["sdpa"]
        return sdpa(module, query, key, value, attention_mask, **options)
    cache, kind = carried
    states = cache.states[cast(int, module.layer_idx)]
    outputs = [
        packed_attention(module, query[:, :, each.start : each.end], keys, values, each.masks[kind], **options)[0]
        for each, (keys, values) in zip(cache.segments, states, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def sharings(model: PreTrainedModel) -> tuple[Sharing, ...]:
    """The ways of sharing to try with this model, the faster one first."""
    if implementation_of(model) == "sdpa" and accepts(model, RAGGED):
        return ("ragged", "concatenated")
    return ("concatenated",)


def forward_together(fed: Sequence[tuple[TorchSequence, Tokens, Draft]], sharing: Sharing) -> list[Tensor]:
    """For each text the logits after its last pending token and every row of its draft, of shape (1 + rows, vocab).

    All are texts of one model that verifies trees. A text that has not been read yet is fed its whole prompt.
    """
    model, traits = fed[0][0].model, fed[0][0].traits
    segments = _segments(fed)
    depths = [plant(len(pending), draft.parents).depths for _, pending, draft in fed]
    positions = [each.sequence.positions(torch.from_numpy(d)) for each, d in zip(segments, depths, strict=True)]
    tokens = [token for _, pending, draft in fed for token in (*pending, *draft.tokens)]
    roots = [each.start + len(pending) - 1 for each, (_, pending, _) in zip(segments, fed, strict=True)]
    rows = [list(range(root, each.end)) for root, each in zip(roots, segments, strict=True)]
    cache = SideBySide(segments, sharing)
    arguments: dict[str, Any] = {traits.cache_argument or "past_key_values": cache, "use_cache": True}
    wanted = torch.tensor([row for own in rows for row in own], device=model.device)
    if traits.keeps_logits:
        arguments["logits_to_keep"] = wanted
    attention = RAGGED if sharing == "ragged" else implementation_of(model)
    with torch.inference_mode(False), torch.no_grad(), fed[0][0].applied(), lent(model, attention):
        outputs = model(
            input_ids=torch.tensor([tokens], device=model.device),
            position_ids=torch.cat(positions)[None].to(model.device),
            attention_mask=_masks(cache, traits, model.dtype),
            **arguments,
        )
    logits = outputs.logits[0] if traits.keeps_logits else outputs.logits[0, wanted]
    for segment in segments:
        if not segment.sequence.is_open:
            segment.sequence.inspect_cache()
    return list(logits.split([len(own) for own in rows]))


def _segments(fed: Sequence[tuple[TorchSequence, Tokens, Draft]]) -> list[Segment]:
    ends = list(accumulate((len(pending) + len(draft) for _, pending, draft in fed), initial=0))
    segments: list[Segment] = []
    for (sequence, pending, draft), (start, end) in zip(fed, pairwise(ends), strict=True):
        tree = plant(len(pending), draft.parents)
        sequence.record(pending, draft)
        masks = {kind: sequence.tree_mask(tree, kind, draft.tokens) for kind in sequence.traits.reaches}
        segments.append(Segment(sequence, start, end, masks))
    return segments


def _masks(cache: SideBySide, traits: Traits, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """What the model is given as its mask: one that only leads to those of the texts, or all of theirs in one."""
    masks = {kind: _mask(cache, kind, traits, dtype) for kind in traits.reaches}
    return masks if len(masks) > 1 else next(iter(masks.values()))


def _mask(cache: SideBySide, kind: str, traits: Traits, dtype: torch.dtype) -> Tensor:
    own = [segment.masks[kind] for segment in cache.segments]
    if cache.sharing == "ragged":
        mask = own[0].new_ones((1, 1, 1, 1))
        vars(mask)[RAGGED] = (cache, kind)
        return mask
    rows, slots = sum(each.shape[2] for each in own), sum(each.shape[3] for each in own)
    hidden = False if traits.takes_booleans else torch.finfo(dtype).min
    joined = own[0].new_full((1, 1, rows, slots), hidden)
    row = slot = 0
    for each in own:
        joined[..., row : row + each.shape[2], slot : slot + each.shape[3]] = each
        row, slot = row + each.shape[2], slot + each.shape[3]
    return joined


AttentionInterface.register(RAGGED, ragged_attention)
AttentionMaskInterface.register(RAGGED, sdpa_mask)
