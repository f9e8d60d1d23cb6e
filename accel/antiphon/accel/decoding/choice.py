"""Which drafter serves a model best where it runs: what was learned for it, against what its forwards cost.

Knows no texts: what there is to copy is for the drafter to see.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from antiphon.accel.decoding.run import check_suitable
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters import BITA_FILE, WINDOW, Bita, Blend
from antiphon.accel.drafting.drafters.bita import acceptance
from antiphon.accel.drafting.drafters.window import window_rows
from antiphon.accel.engines.torch.bita_weights import BitaWeights
from antiphon.accel.engines.torch.cache import CachedModel
from antiphon.accel.engines.torch.compiled import obstacle
from antiphon.accel.engines.torch.cost_store import step_cost
from antiphon.accel.engines.torch.probe import traits_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from antiphon.accel.drafting.step_cost import StepCost

_CONTEXT = 512
"""The tokens before a step whose cost decides."""

_LOOKAHEAD = 0.05
"""Tokens a step that a window added to SmolLM2's chats, at 32 rows."""

_found: WeakKeyDictionary[PreTrainedModel, tuple[BitaWeights | None, str]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter, what it is called, and why it was chosen."""

    drafter: DrafterFactory
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_drafter(model: PreTrainedModel) -> Choice:
    """`Blend`, with BiTA's masks beside it where they were learned for this model and pay on this device.

    They pay where BiTA's full draft makes more tokens than its forward costs plain steps; below that a budget would
    leave most masks out, and asking costs time. On a GPU whose steps would be compiled they are not chosen: masks
    forfeit that. `Lookahead` is never chosen, neither alone nor in one tree: the runners-up that `Blend` keeps make
    longer steps of the same rows, and its window added a few hundredths to these; the reason says what it would cost.

    The file of what was learned is looked for once in a model's life, in the model's folder or in the hub's cache; the
    cost is that of `step_cost`.
    """
    if (traits := traits_of(model)).level == "plain":
        return Choice(Blend, "blend", f"drafts do not help this model: {traits.reason}")
    if model not in _found:
        _found[model] = _learned(model)
    learned, lack = _found[model]
    cost = step_cost(model)
    rows = window_rows(*WINDOW[:2])
    lookahead = (
        f"lookahead's window, {rows} rows for some {_LOOKAHEAD} tokens, would cost "
        f"{cost.ratio(1 + rows, _CONTEXT) - 1:.2f} plain steps"
    )
    pays, bita = (False, lack) if learned is None else _weighed(model, learned, cost)
    if pays:
        return Choice(partial(Blend, learned), "blend with bita", f"{bita}; {lookahead}")
    return Choice(Blend, "blend", f"{bita}; {lookahead}")


def _weighed(model: PreTrainedModel, learned: BitaWeights, cost: StepCost) -> tuple[bool, str]:
    """Whether masks pay, and why."""
    traits = traits_of(model)
    try:
        check_suitable(learned, model, traits, bucket=0)
    except ValueError as error:
        return False, str(error).rstrip(".")
    if model.device.type == "cuda" and obstacle(model, traits, CachedModel(model, traits).cache) is None:
        return False, "its steps are compiled on this GPU, which BiTA's masks forfeit"
    rows, tokens = 1 + Bita(learned).rows, 1 + sum(acceptance(len(learned.masks)))
    price = cost.ratio(rows, _CONTEXT)
    bita = f"BiTA's full draft, {rows} rows, makes about {tokens:.1f} tokens and costs {price:.1f} plain steps"
    return tokens > price, bita


def _learned(model: PreTrainedModel) -> tuple[BitaWeights | None, str]:
    """What BiTA learned for this model, from the file in its folder; else why there is none."""
    from transformers.utils.hub import cached_file

    try:
        return BitaWeights.load(str(cached_file(str(model.config.name_or_path), BITA_FILE, local_files_only=True))), ""
    except OSError:
        return None, f"no {BITA_FILE} lies in the model's folder"
    except ValueError as error:
        return None, str(error).rstrip(".")
