"""Which drafter serves a model best where it runs: what was learned for it, against what its forwards cost.

Knows no texts: what there is to copy is for the drafter to see.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from antiphon.accel.cost_store import step_cost
from antiphon.accel.draft import DrafterFactory
from antiphon.accel.drafters import LEARNED_FILE, Bita, Blend, Lookahead, Together
from antiphon.accel.drafters.bita import worths
from antiphon.accel.learned import Learned
from antiphon.accel.probe import traits_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONTEXT = 512
"""The tokens before a step whose cost decides."""

_chosen: WeakKeyDictionary[PreTrainedModel, Choice] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter, the name that a command line gives it, and why it was chosen."""

    drafter: DrafterFactory
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_drafter(model: PreTrainedModel) -> Choice:
    """`Blend`, with BiTA's masks beside it where they were learned for this model and pay on this device.

    They pay where BiTA's full draft makes more tokens than its forward costs plain steps; below that a budget would
    leave most masks out, and asking costs time. `Lookahead` is never chosen, neither alone nor in one tree: the
    runners-up that `Blend` keeps make longer steps of the same rows, and its window added a few hundredths to these.
    The reason says what a window would cost.

    The cost is measured once (see `step_cost`), and the choice is kept as long as the model lives.
    """
    if model not in _chosen:
        _chosen[model] = _choice(model)
    return _chosen[model]


def _choice(model: PreTrainedModel) -> Choice:
    if (traits := traits_of(model)).level == "plain":
        return Choice(Blend, "blend", f"drafts do not help this model: {traits.reason}")
    cost = step_cost(model)
    window = Lookahead().rows + 1
    lookahead = f"a window of lookahead, {window} rows, would cost {cost.ratio(window, _CONTEXT):.1f} plain steps"
    learned, lack = _learned(model)
    if learned is None:
        return Choice(Blend, "blend", f"{lack}; {lookahead}")
    rows, tokens = Bita(learned).rows + 1, 1 + sum(worths(len(learned.masks)))
    price = cost.ratio(rows, _CONTEXT)
    bita = f"BiTA's full draft, {rows} rows, makes about {tokens:.1f} tokens and costs {price:.1f} plain steps"
    if tokens > price:
        return Choice(partial(Together, learned), "blend+bita", f"{bita}; {lookahead}")
    return Choice(Blend, "blend", f"{bita}; {lookahead}")


def _learned(model: PreTrainedModel) -> tuple[Learned | None, str]:
    """What BiTA learned for this model, from the file in its folder; else why there is none."""
    from transformers.utils.hub import cached_file

    try:
        file = cached_file(str(model.config.name_or_path), LEARNED_FILE, local_files_only=True)
        learned = Learned.load(str(file))
        learned.check(model)
    except OSError:
        return None, f"no {LEARNED_FILE} lies in the model's folder"
    except ValueError as error:
        return None, str(error).rstrip(".")
    return learned, ""
