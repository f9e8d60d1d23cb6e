"""Select the drafter by name, or automatically by the model's BiTA masks and measured costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters import WINDOW, Bita, Blend, RecyclingTable, make_drafter
from antiphon.accel.drafting.drafters.bita import MaskWeights, initial_acceptance
from antiphon.accel.drafting.drafters.lookahead import window_rows
from antiphon.accel.engines.selection import EngineChoice, select_engine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from antiphon.accel.drafting.cost_model import StepCost
    from antiphon.accel.drafting.drafters.head import DraftHead
    from antiphon.accel.engines.protocol import ModelEngine

AUTO = "auto"
"""Name of the drafter that is selected automatically."""

_CONTEXT = 512
"""Context length, in tokens, at which costs are compared."""

_WINDOW_GAIN = 0.05
"""Measured gain of Lookahead's window in tokens per step: SmolLM2, chat prompts, 32 rows."""


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """A selected drafter.

    Attributes:
        drafter: Makes a drafter for each request.
        reason: Why this drafter was selected.
    """

    drafter: DrafterFactory
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_drafter(
    model: PreTrainedModel,
    cost: StepCost | None = None,
    *,
    reproducible: bool = False,
    engine: EngineChoice = "torch",
) -> DrafterChoice:
    """Return `Blend`, with BiTA's masks if the model has them and they are worth their cost.

    Masks are trained for one model. They are worth their cost on this device if a step with BiTA's
    full draft emits more tokens than plain steps in the same time. They are not used on a GPU that
    runs compiled steps, because compiled steps do not support masks. `Lookahead` is never selected,
    because its window added only a few hundredths of a token per step and the recycling table of
    `Blend` gains more per row. The returned reason states the cost of the window.

    Args:
        cost: Cost of forward passes; None: measured once, or taken from the cache.
        reproducible: As in `DecodingOptions`; reproducible decoding uses no masks.
        engine: The engine that decodes; only torch uses masks.
    """
    runs, options = select_engine(model, engine).engine, DecodingOptions(cost=cost, reproducible=reproducible)
    return runs.lock.run(lambda: _choose(runs, options))


def check_drafter(drafter: str | DrafterFactory) -> None:
    """Check the name of a drafter.

    Raises:
        ValueError: There is no drafter of that name.
    """
    if isinstance(drafter, str) and drafter != AUTO:
        make_drafter(drafter)


def drafter_factory(options: DecodingOptions, engine: ModelEngine, head: DraftHead | None = None) -> DrafterFactory:
    """Return the drafter factory that these options select.

    Args:
        options: The decoding options. If their ``drafter`` is a factory, this factory is returned.
        head: The model's draft head, which `Blend` uses.

    Raises:
        ValueError: There is no drafter of that name.
    """
    drafter = options.drafter
    if head is not None and drafter in (AUTO, "blend", Blend):
        return partial(Blend, head=head)
    if not isinstance(drafter, str):
        return drafter
    return _choose(engine, options).drafter if drafter == AUTO else make_drafter(drafter)


def check_table(table: RecyclingTable | Literal[False], model: str) -> RecyclingTable | None:
    """Check that a caller's recycling table belongs to this model, and return the table; for False, return None.

    Args:
        table: The caller's table, or False for none.

    Raises:
        ValueError: The table belongs to another model.
    """
    if table is False:
        return None
    if table.model not in ("", model):
        raise ValueError(
            f"recycling is the recycling table of {table.model!r}, and this is {model!r}; give each model a table of "
            "its own."
        )
    return table


def _choose(engine: ModelEngine, options: DecodingOptions) -> DrafterChoice:
    weights, reason = engine.usable_bita(reproducible=options.reproducible)
    if engine.level == "plain":
        return DrafterChoice(Blend, "blend", reason)
    cost = options.cost or engine.step_cost()
    rows = window_rows(*WINDOW[:2])
    window = (
        f"lookahead's window, {rows} rows for some {_WINDOW_GAIN} tokens, would cost "
        f"{cost.ratio(1 + rows, _CONTEXT) - 1:.2f} plain steps"
    )
    pays = False
    if weights is not None:
        pays, reason = _masks_pay(weights, cost)
    drafter, name = (partial(Blend, weights), "blend with bita") if pays else (Blend, "blend")
    return DrafterChoice(drafter, name, f"{reason}; {window}")


def _masks_pay(weights: MaskWeights, cost: StepCost) -> tuple[bool, str]:
    """Return whether BiTA's full draft emits tokens faster than plain steps, and a text with the figures."""
    rows, tokens = 1 + Bita(weights).max_rows, 1 + sum(initial_acceptance(len(weights.masks)))
    price = cost.ratio(rows, _CONTEXT)
    reason = f"BiTA's full draft, {rows} rows, makes about {tokens:.1f} tokens and costs {price:.1f} plain steps"
    return tokens > price, reason
