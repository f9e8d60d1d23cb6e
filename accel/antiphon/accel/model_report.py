"""Report on one model: verification level, cost of steps, advice. This module prints nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphon.accel.decoding.drafter_choice import choose_drafter
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.drafters.head import WIDTH, HiddenStates
from antiphon.accel.drafting.tree import AttentionSpan
from antiphon.accel.engines.protocol import Level
from antiphon.accel.engines.selection import EngineChoice, SelectedEngine, select_engine
from antiphon.accel.engines.torch.attention import HALF_DTYPES
from antiphon.accel.engines.torch.engine import TorchEngine, engine_of
from antiphon.accel.engines.torch.traits import MASKABLE, RopeSwitch, Traits

TIMED_PASSES = 5
"""Number of timed passes of a draft head; the fastest one counts."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of one kind.

    Attributes:
        name: Name of the kind in the model's configuration.
        span: Attention span of the layers; None if they have no attention.
        state: Whether the layers keep a recurrent or convolutional state.
    """

    name: str
    layers: int
    span: AttentionSpan | None
    state: bool

    def __str__(self) -> str:
        does = [_describe_span(self.span)] if self.span else []
        does += ["keeps recurrent or convolutional state"] if self.state else []
        return f"{self.layers} {self.name}: {', '.join(does) or 'keeps nothing'}"


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The report on one loaded model.

    Attributes:
        model: Class of the model.
        engine: The engine that runs the model on this machine, and why it was selected.
        mask: Kind of attention mask that torch applies to a draft.
        layers: Kinds of layers.
        rope: How rotary frequencies change with the length of the text; None if they do not.
        max_positions: Length of the context in tokens; None if unlimited.
        packing_reason: Why torch does not pack the query heads of a key head into rows; empty if
            torch does.
        compiling_reason: Why torch does not compile the steps; empty if torch does.
        cost: Measured cost of the engine's forward passes.
        auto_drafter: The drafter that "auto" selects, and why.
        draft_head: The model's trained draft head, its size and the time of one of its passes; or
            why there is no draft head.
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
    max_positions: int | None
    packing_reason: str
    compiling_reason: str
    cost: StepCost
    auto_drafter: str
    draft_head: str
    advice: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields by name, for JSON."""
        return asdict(self) | {"cost": self.cost.as_dict()}


def inspect_model(model: PreTrainedModel, *, engine: EngineChoice = "torch") -> ModelReport:
    """Inspect a model and measure its steps; new measurements replace stored ones.

    Raises:
        ValueError: The model is not a causal language model with a KV cache, or the engine cannot run it.
    """
    selected = select_engine(model, engine)
    return selected.engine.lock.run(lambda: _inspect(engine_of(model), selected, engine))


def _inspect(engine: TorchEngine, selected: SelectedEngine, choice: EngineChoice) -> ModelReport:
    model, traits = engine.model, engine.traits
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
        layers=tuple(
            LayerKind(kind, count, traits.attention_spans.get(kind), kind in traits.state_kinds)
            for kind, count in Counter(traits.layer_kinds).items()
        ),
        rope=traits.rope,
        max_positions=traits.max_positions,
        packing_reason=traits.packing_reason,
        compiling_reason=engine.why_not_compiled(),
        cost=cost,
        auto_drafter=str(choose_drafter(model, engine=choice)),
        draft_head=describe_head(engine),
        advice=tuple(_advice(model, traits)),
    )


@torch.no_grad()
def describe_head(engine: TorchEngine) -> str:
    """Return the kind of the model's draft head, its size and the time of a pass; or why there is no draft head."""
    head = engine.head
    if head is None:
        return f"none: {engine.head_reason}"
    sequence = engine.sequence(hidden_states=head.layers)
    session = head.session(lambda: sequence.cache)
    sequence.prefill([0, 0])
    sequence.keep(())
    [states] = sequence.hidden_states.take()
    seconds: list[float] = []
    for start in range(TIMED_PASSES):
        newest = HiddenStates(start, tuple(each[-1:] for each in states.layers))
        started = perf_counter()
        session.read([newest], [0], WIDTH)
        seconds.append(perf_counter() - started)
    guesses = f"for {head.max_depth} guesses" if head.is_parallel else "a guess"
    return f"{head.name}, {head.num_bytes / 1e6:,.1f} MB of its own weights, {1000 * min(seconds):.1f} ms {guesses}"


def _mask(traits: Traits) -> str:
    if traits.level != "tree":
        return "none: only chains are drafted" if traits.level != "plain" else "none: nothing is drafted"
    if not traits.attention_spans:
        return "none: no layer attends"
    kind = "boolean" if traits.takes_boolean_masks else "additive"
    return (
        f"one {kind} mask"
        if len(traits.attention_spans) == 1
        else f"{len(traits.attention_spans)} {kind} masks, by kind of layer"
    )


def _describe_span(span: AttentionSpan) -> str:
    if span.window is not None:
        return f"looks back {span.window:,} tokens"
    return f"looks back to the start of its chunk of {span.chunk:,}" if span.chunk else "looks back to the start"


def _advice(model: PreTrainedModel, traits: Traits) -> list[str]:
    advice = []
    if model.training:
        advice.append("Call model.eval(): no draft is verified in training mode.")
    elif traits.level == "plain":
        advice.append("Use the drafter 'nothing': this model cannot verify drafts.")
    if traits.implementation not in MASKABLE:
        advice.append("Load it with attn_implementation='sdpa': its attention takes no tree mask.")
    if model.dtype in HALF_DTYPES:
        advice.append(
            f"Load it in float32 if every token has to equal plain decoding's: in {model.dtype} rounding can swap two "
            "tokens that are almost equally likely."
        )
    if traits.level == "replay":
        advice.append("Draft only what is likely: a partly accepted draft costs a second forward pass.")
    if traits.rope is not None and traits.rope.dynamic:
        advice.append(f"Keep prompt and answer within {traits.rope.position:,} tokens: nothing is drafted after that.")
    return advice
