"""What a model can verify, as its own config and signature declare it. Runs no model: `self_test.py` does."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import DynamicCache, GenerationMixin, PreTrainedModel

from antiphon.accel.drafting.tree import AttentionSpan
from antiphon.accel.engines.protocol import Level
from antiphon.accel.engines.torch.attention import EXACT, implementation_of

DUMMY = "DummyLayer"  # by name, as all of these: not every release of transformers has every class to import
TREE_LAYERS = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer", DUMMY})
STATE_ALONE = "LinearAttentionLayer"
STATE_LAYERS = frozenset({STATE_ALONE, "LinearAttentionAndFullAttentionLayer"})
BOOLEAN = ("sdpa", EXACT)
MASKABLE = (*BOOLEAN, "eager")


@dataclass(frozen=True, slots=True)
class RopeSwitch:
    """Where rotary frequencies begin to depend on the longest position of a forward: no draft may reach over it.

    From ``position`` on, dynamic NTK scaling changes them at every step; longrope changes them once, and some models
    recompute (``rebuilds``) their whole cache there.
    """

    position: int
    dynamic: bool = False
    rebuilds: bool = False


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model can do for us, and why.

    ``kinds`` names the kind of every layer, ``states`` the kinds that keep recurrent or convolutional state.
    ``reaches`` maps each kind that attends to how far it looks and ``first`` to the index of its first layer; a model
    with one such kind takes one mask, a hybrid one a dict of masks. ``positions`` is where the model's context ends.
    ``packs`` says whether its trees, and single rows where it helps, are attended by packed attention, and
    ``packing`` why not.
    """

    level: Level
    reason: str
    implementation: str
    cache_argument: str | None
    takes_positions: bool
    keeps_logits: bool
    kinds: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    reaches: Mapping[str, AttentionSpan] = field(default_factory=dict)
    first: Mapping[str, int] = field(default_factory=dict)
    positions: int | None = None
    rope: RopeSwitch | None = None
    packs: bool = False
    packing: str = "no tree is verified"

    @property
    def takes_booleans(self) -> bool:
        """Whether its attention takes a boolean mask. Eager attention adds its mask to the scores: it takes numbers,
        and a boolean one would be silently wrong in every model.
        """
        return self.implementation in BOOLEAN


def declared(model: PreTrainedModel) -> Traits:
    """What the model's config and signature promise; a self-test may lower the level.

    Raises:
        ValueError: the model is not a causal language model with a key-value cache.
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
    kinds = _kinds(config, layers)
    reaches, first = _reaches(kinds, layers)
    return Traits(
        level=level,
        reason=reason,
        implementation=implementation,
        cache_argument=next((name for name in ("past_key_values", "cache_params") if name in parameters), None),
        takes_positions="position_ids" in parameters,
        keeps_logits="logits_to_keep" in parameters,
        kinds=kinds,
        states=tuple(
            {k: None for k, layer in zip(kinds, layers, strict=False) if type(layer).__name__ in STATE_LAYERS}
        ),
        reaches=reaches,
        first=first,
        positions=getattr(config, "max_position_embeddings", None),
        rope=_rope(model, config),
    )


def _level(layers: list[Any], implementation: str, parameters: Mapping[str, Any]) -> tuple[Level, str]:
    kinds = {type(layer).__name__ for layer in layers}
    unknown = kinds - TREE_LAYERS - STATE_LAYERS
    if kinds & STATE_LAYERS and not unknown:
        return "replay", f"it keeps recurrent or convolutional state ({', '.join(sorted(kinds & STATE_LAYERS))})"
    if unknown:
        return "plain", f"its cache has layers that cannot be rewound ({', '.join(sorted(unknown))})"
    if implementation not in MASKABLE:
        return "linear", (
            f"attention implementation {implementation!r} takes no tree mask; load it with attn_implementation='sdpa'"
        )
    if "position_ids" not in parameters:
        return "linear", "its forward takes no position_ids, which siblings need"
    return "tree", "its layers attend through masks and positions that a tree can set"


def _kinds(config: Any, layers: list[Any]) -> tuple[str, ...]:
    inferred = ["sliding_attention" if getattr(layer, "is_sliding", False) else "full_attention" for layer in layers]
    return tuple(getattr(config, "layer_types", None) or inferred)


def _reaches(kinds: tuple[str, ...], layers: list[Any]) -> tuple[dict[str, AttentionSpan], dict[str, int]]:
    reaches: dict[str, AttentionSpan] = {}
    first: dict[str, int] = {}
    for index, (kind, layer) in enumerate(zip(kinds, layers, strict=False)):
        if kind in reaches or type(layer).__name__ in (DUMMY, STATE_ALONE):
            continue
        width = getattr(layer, "sliding_window", None)
        reaches[kind] = AttentionSpan(chunk=width) if kind == "chunked_attention" else AttentionSpan(window=width)
        first[kind] = index
    return reaches, first


def _rope(model: PreTrainedModel, config: Any) -> RopeSwitch | None:
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]  # hybrid models: one per layer type
    for rope in nested or [parameters]:
        kind = rope.get("rope_type", rope.get("type"))
        if kind == "longrope":
            trained = rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
            # Phi-3 overrides this method to drop its cache at the switch; a model that does not simply goes on.
            own = getattr(type(model), "prepare_inputs_for_generation", None)
            rebuilds = own is not GenerationMixin.prepare_inputs_for_generation
            return RopeSwitch(int(trained), rebuilds=rebuilds)
        if kind == "dynamic":
            return RopeSwitch(int(config.max_position_embeddings), dynamic=True)
    return None
