"""Which drafter serves a model best where it runs: what was learned for it, against what its forwards cost.

Knows no texts: what there is to copy is for the drafter to see.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters import WINDOW, Bita, Blend, make_drafter
from antiphon.accel.drafting.drafters.bita import acceptance
from antiphon.accel.drafting.drafters.window import window_rows
from antiphon.accel.engines.selection import EngineChoice, select
from antiphon.accel.engines.torch.bita_weights import BitaWeights
from antiphon.accel.engines.torch.engine import TorchEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from antiphon.accel.drafting.step_cost import StepCost
    from antiphon.accel.engines.protocol import ModelEngine

AUTO = "auto"
"""The name of the drafter that suits a model where it runs."""

_CONTEXT = 512
"""The tokens before a step whose cost decides."""

_LOOKAHEAD = 0.05
"""Tokens a step that a window added to SmolLM2's chats, at 32 rows."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter, what it is called, and why it was chosen."""

    drafter: DrafterFactory
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_drafter(
    model: PreTrainedModel,
    cost: StepCost | None = None,
    *,
    deterministic: bool | int = False,
    engine: EngineChoice = "torch",
) -> Choice:
    """`Blend`, with BiTA's masks beside it where they were learned for this model and pay on this device.

    They pay where BiTA's full draft makes more tokens than its forward costs plain steps; below that a budget would
    leave most masks out, and asking costs time. On a GPU whose steps would be compiled they are not chosen: masks
    forfeit that. `Lookahead` is never chosen, neither alone nor in one tree: the runners-up that `Blend` keeps make
    longer steps of the same rows, and its window added a few hundredths to these; the reason says what it would cost.
    ``cost`` is what forwards cost, where it is not to be measured. Masks are not decoded ``deterministic``-ally, and
    only by the ``engine`` of torch.
    """
    runs, options = select(model, engine).engine, DecodingOptions(cost=cost, deterministic=deterministic)
    return runs.lock.take(lambda: _chosen(runs, options))


def check_drafter(drafter: str | DrafterFactory) -> None:
    """Refuse a name that no drafter has.

    Raises:
        ValueError: there is no drafter of that name.
    """
    if isinstance(drafter, str) and drafter != AUTO:
        make_drafter(drafter)


def factory_of(options: DecodingOptions, engine: ModelEngine) -> DrafterFactory:
    """What makes the drafters of a name, and for `AUTO` those that suit the engine's model and the other options.

    Raises:
        ValueError: there is no drafter of that name.
    """
    drafter = options.drafter
    if not isinstance(drafter, str):
        return drafter
    return _chosen(engine, options).drafter if drafter == AUTO else make_drafter(drafter)


def _chosen(engine: ModelEngine, options: DecodingOptions) -> Choice:
    if not isinstance(engine, TorchEngine):
        return Choice(Blend, "blend", f"BiTA's masks are not verified by the engine {engine.name}")
    if engine.traits.level == "plain":
        return Choice(Blend, "blend", f"drafts do not help this model: {engine.traits.reason}")
    weights, lack = engine.own_bita
    cost = options.cost or engine.step_cost()
    rows = window_rows(*WINDOW[:2])
    lookahead = (
        f"lookahead's window, {rows} rows for some {_LOOKAHEAD} tokens, would cost "
        f"{cost.ratio(1 + rows, _CONTEXT) - 1:.2f} plain steps"
    )
    pays, bita = (False, lack) if weights is None else _weighed(engine, weights, cost, options.fixed_rows)
    if pays:
        return Choice(partial(Blend, weights), "blend with bita", f"{bita}; {lookahead}")
    return Choice(Blend, "blend", f"{bita}; {lookahead}")


def _weighed(engine: TorchEngine, weights: BitaWeights, cost: StepCost, fixed_rows: int) -> tuple[bool, str]:
    """Whether masks pay, and why."""
    try:
        engine.check_bita(weights, fixed_rows=fixed_rows)
    except ValueError as error:
        return False, str(error).rstrip(".")
    if engine.model.device.type == "cuda" and not engine.why_not_compiled():
        return False, "its steps are compiled on this GPU, which BiTA's masks forfeit"
    rows, tokens = 1 + Bita(weights).rows, 1 + sum(acceptance(len(weights.masks)))
    price = cost.ratio(rows, _CONTEXT)
    bita = f"BiTA's full draft, {rows} rows, makes about {tokens:.1f} tokens and costs {price:.1f} plain steps"
    return tokens > price, bita
