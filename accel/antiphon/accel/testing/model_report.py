"""What a model can do for drafted decoding, why, and what would help. Knows nothing of terminals."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphon.accel.decoding.drafter_choice import choose_drafter
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.tree import AttentionSpan
from antiphon.accel.engines.protocol import Level
from antiphon.accel.engines.selection import EngineChoice, SelectedEngine, select_engine
from antiphon.accel.engines.torch.attention import HALF_DTYPES
from antiphon.accel.engines.torch.engine import TorchEngine, engine_of
from antiphon.accel.engines.torch.traits import MASKABLE, RopeSwitch, Traits


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of one kind: how many, how far they look (None where they do not attend), and whether they keep state."""

    name: str
    layers: int
    reach: AttentionSpan | None
    state: bool

    def __str__(self) -> str:
        does = [_seen(self.reach)] if self.reach else []
        does += ["keeps recurrent or convolutional state"] if self.state else []
        return f"{self.layers} {self.name}: {', '.join(does) or 'keeps nothing'}"


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The facts about one loaded model.

    ``mask`` says what its attention is given with a draft. ``groups`` is how many query heads share one key and value
    head, None where the cache holds none; ``packing`` says why they are not packed into rows of one head under a
    draft's mask, and is empty where they are; ``prepacking`` says the same of weights, of which ``prepacked`` bytes are
    copied, and ``compiling`` of compiled steps. ``positions`` is where its context ends, in tokens. ``engine`` runs the
    model here, and why; what is said of masks, packing and weights is said of torch, and ``cost`` of this engine.
    ``auto`` is the drafter of that name, and why.
    """

    model: str
    family: str
    parameters: int
    dtype: str
    device: str
    engine: str
    level: Level
    reason: str
    attention: str
    mask: str
    layers: tuple[LayerKind, ...]
    rope: RopeSwitch | None
    positions: int | None
    groups: int | None
    packing: str
    prepacking: str
    prepacked: int
    compiling: str
    cost: StepCost
    auto: str
    advice: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """All facts under their names, for JSON."""
        return asdict(self) | {"cost": self.cost.as_dict()}


def inspect_model(model: PreTrainedModel, *, engine: EngineChoice = "torch") -> ModelReport:
    """Probe the model, measure its steps anew (the figures replace those that were kept), and say what follows.

    Raises:
        ValueError: the model is not a causal language model with a key-value cache, or the engine cannot run it.
    """
    selected = select_engine(model, engine)
    return selected.engine.lock.run(lambda: _diagnose(engine_of(model), selected, engine))


def _diagnose(engine: TorchEngine, selected: SelectedEngine, asked: EngineChoice) -> ModelReport:
    model, traits, weights = engine.model, engine.traits, engine.prepacked
    cost = selected.engine.step_cost(remeasure=True)
    return ModelReport(
        engine=f"{selected.engine.name}: {selected.reason}",
        model=type(model).__name__,
        family=model.config.model_type,
        parameters=model.num_parameters(),
        dtype=str(model.dtype).removeprefix("torch."),
        device=", ".join(sorted({str(parameter.device) for parameter in model.parameters()})),
        level=traits.level,
        reason=traits.reason,
        attention=traits.implementation,
        mask=_mask(traits),
        layers=_layers(traits),
        rope=traits.rope,
        positions=traits.max_positions,
        groups=_groups(engine),
        packing=traits.packing_reason,
        prepacking=weights.reason,
        prepacked=weights.size,
        compiling=engine.why_not_compiled(),
        cost=cost,
        auto=str(choose_drafter(model, engine=asked)),
        advice=tuple(_advice(model, traits)),
    )


def _mask(traits: Traits) -> str:
    if traits.level != "tree":
        return "none: only chains are drafted" if traits.level != "plain" else "none: nothing is drafted"
    kind = "boolean" if traits.takes_boolean_masks else "additive"
    return f"one {kind} mask" if len(traits.attention_spans) == 1 else f"{len(traits.attention_spans)} {kind} masks, by kind of layer"


def _layers(traits: Traits) -> tuple[LayerKind, ...]:
    return tuple(
        LayerKind(kind, count, traits.attention_spans.get(kind), kind in traits.state_kinds)
        for kind, count in Counter(traits.layer_kinds).items()
    )


def _seen(reach: AttentionSpan) -> str:
    if reach.window is not None:
        return f"looks back {reach.window:,} tokens"
    return f"looks back to the start of its chunk of {reach.chunk:,}" if reach.chunk else "looks back to the start"


@torch.no_grad()
def _groups(engine: TorchEngine) -> int | None:
    """Counted in the cache: what configurations call their key and value heads differs from family to family."""
    heads = getattr(engine.model.config.get_text_config(decoder=True), "num_attention_heads", None)
    sequence = engine.sequence()
    sequence.prefill([0, 0])
    layers: list[Any] = list(sequence.cache.layers)
    shared = [layer.keys.shape[1] for layer in layers if getattr(layer, "keys", None) is not None]
    return heads // shared[0] if shared and isinstance(heads, int) else None


def _advice(model: PreTrainedModel, traits: Traits) -> list[str]:
    advice = []
    if model.training:
        advice.append("Call model.eval(): in training mode nothing can be verified.")
    elif traits.level == "plain":
        advice.append("Decode it with the drafter 'nothing': drafts cannot be verified.")
    if traits.implementation not in MASKABLE:
        advice.append("Load it with attn_implementation='sdpa': its attention takes no mask of a tree.")
    if model.dtype in HALF_DTYPES:
        advice.append(
            f"Where the text has to be plain decoding's to the last token, load it in float32: in {model.dtype} two "
            "tokens that are equally likely up to rounding can change places."
        )
    if traits.level == "replay":
        advice.append("Draft only what is likely: a draft that is partly accepted costs a second forward.")
    if traits.rope is not None and traits.rope.dynamic:
        advice.append(f"Keep prompt and answer within {traits.rope.position:,} tokens: nothing is drafted beyond.")
    return advice
