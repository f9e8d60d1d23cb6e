"""Traits of a model: facts about layers, masks and positions, taken from its config and signature.

The self-test (`self_test.py`) confirms or lowers the verification level that is declared here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import DynamicCache, GenerationMixin, PreTrainedModel

from antiphon.accel.drafting.tree import AttentionSpan
from antiphon.accel.engines.protocol import Level
from antiphon.accel.engines.torch.attention import EXACT, implementation_of
from antiphon.accel.engines.torch.cache_kinds import DUMMY, STATE_LAYERS, STATE_ONLY, TREE_LAYERS

BOOLEAN_MASKS = ("sdpa", EXACT)
"""Attention implementations of transformers that accept boolean masks."""

MASKABLE = (*BOOLEAN_MASKS, "eager")
"""Attention implementations of transformers that accept the mask of a draft tree."""


@dataclass(frozen=True, slots=True)
class RopeSwitch:
    """The position at which a model changes its rotary frequencies. A draft must not extend past this position.

    Attributes:
        position: First position that changes the frequencies.
        dynamic: True: frequencies change at every step from ``position`` on (dynamic NTK scaling).
            False: they change once (Longrope).
        rebuilds: Whether the model recomputes its whole KV cache at ``position``.
    """

    position: int
    dynamic: bool = False
    rebuilds: bool = False


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about a model: its verification level, its layers, and the arguments of its ``forward`` method.

    A model with one kind of attention layer takes one mask. A hybrid model takes a dict with a mask
    for each kind of layer.

    Attributes:
        implementation: The attention implementation of transformers, such as "sdpa".
        cache_argument: Name of the cache argument of ``forward``; None if the model keeps no cache.
        takes_positions: Whether ``forward`` takes ``position_ids``.
        takes_logits_to_keep: Whether ``forward`` takes ``logits_to_keep``.
        layer_kinds: Kind of each layer, in order.
        state_kinds: Kinds of layers that keep recurrent or convolutional state.
        attention_spans: How far each kind of attention layer looks back.
        first_layers: Index of the first layer of each kind of attention layer.
        max_positions: Context length of the model in tokens; None if the config sets none.
        rope: Where the rotary frequencies change; None if they never change.
        uses_packed_attention: Whether steps with a draft, and compiled steps, use packed attention.
        packing_reason: Why packed attention is not used; empty if it is used.
    """

    level: Level
    reason: str
    implementation: str
    cache_argument: str | None
    takes_positions: bool
    takes_logits_to_keep: bool
    layer_kinds: tuple[str, ...] = ()
    state_kinds: tuple[str, ...] = ()
    attention_spans: Mapping[str, AttentionSpan] = field(default_factory=dict)
    first_layers: Mapping[str, int] = field(default_factory=dict)
    max_positions: int | None = None
    rope: RopeSwitch | None = None
    uses_packed_attention: bool = False
    packing_reason: str = "no tree is verified"

    @property
    def takes_boolean_masks(self) -> bool:
        """Whether the model's attention takes a boolean mask.

        Eager attention adds the mask to the scores, so a boolean mask would silently give wrong results.
        """
        return self.implementation in BOOLEAN_MASKS


def declared_traits(model: PreTrainedModel) -> Traits:
    """Return the traits that a model's config and signature declare; a self-test may lower the level.

    Raises:
        ValueError: The model is not a causal language model with a KV cache.
    """
    parameters = inspect.signature(model.forward).parameters
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder or not isinstance(model, GenerationMixin):
        raise ValueError(
            f"{type(model).__name__} is not a causal language model; "
            "load one with AutoModelForCausalLM.from_pretrained."
        )
    implementation = implementation_of(model)
    layers = DynamicCache(config=config).layers
    level, reason = _level(layers, implementation, parameters)
    inferred = ["sliding_attention" if getattr(layer, "is_sliding", False) else "full_attention" for layer in layers]
    kinds = tuple(getattr(config, "layer_types", None) or inferred)
    spans, first_layers = _attention_spans(kinds, layers)
    return Traits(
        level=level,
        reason=reason,
        implementation=implementation,
        cache_argument=next((name for name in ("past_key_values", "cache_params") if name in parameters), None),
        takes_positions="position_ids" in parameters,
        takes_logits_to_keep="logits_to_keep" in parameters,
        layer_kinds=kinds,
        state_kinds=tuple(
            {k: None for k, layer in zip(kinds, layers, strict=False) if type(layer).__name__ in STATE_LAYERS}
        ),
        attention_spans=spans,
        first_layers=first_layers,
        max_positions=getattr(config, "max_position_embeddings", None),
        rope=_rope_switch(model, config),
    )


def _level(layers: list[Any], implementation: str, parameters: Mapping[str, Any]) -> tuple[Level, str]:
    kinds = {type(layer).__name__ for layer in layers}
    unknown = kinds - TREE_LAYERS - STATE_LAYERS
    if unknown:
        return "plain", f"its cache has layers that cannot be rolled back ({', '.join(sorted(unknown))})"
    if kinds == {STATE_ONLY}:
        return "tree", "its layers compute each row of a draft tree from its parent's state"
    if implementation not in MASKABLE:
        return "linear", (
            f"attention implementation {implementation!r} takes no tree mask; load it with attn_implementation='sdpa'"
        )
    if "position_ids" not in parameters:
        return "linear", "its forward takes no position_ids, which sibling rows of a draft tree need"
    if kinds & STATE_LAYERS:
        return "tree", "its layers take the masks, positions and parents of a draft tree"
    return "tree", "its layers take the masks and positions of a draft tree"


def _attention_spans(kinds: tuple[str, ...], layers: list[Any]) -> tuple[dict[str, AttentionSpan], dict[str, int]]:
    spans: dict[str, AttentionSpan] = {}
    first_layers: dict[str, int] = {}
    for index, (kind, layer) in enumerate(zip(kinds, layers, strict=False)):
        if kind in spans or type(layer).__name__ in (DUMMY, STATE_ONLY):
            continue
        width = getattr(layer, "sliding_window", None)
        spans[kind] = AttentionSpan(chunk=width) if kind == "chunked_attention" else AttentionSpan(window=width)
        first_layers[kind] = index
    return spans, first_layers


def _rope_switch(model: PreTrainedModel, config: Any) -> RopeSwitch | None:
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]  # hybrid models: one per layer type
    for rope in nested or [parameters]:
        kind = rope.get("rope_type", rope.get("type"))
        if kind == "longrope":
            trained = rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
            # Phi-3 overrides this method to drop its cache at the switch; other models keep their cache.
            own = getattr(type(model), "prepare_inputs_for_generation", None)
            rebuilds = own is not GenerationMixin.prepare_inputs_for_generation
            return RopeSwitch(int(trained), rebuilds=rebuilds)
        if kind == "dynamic":
            return RopeSwitch(int(config.max_position_embeddings), dynamic=True)
    return None
