"""What the loop asks of whoever runs a model: sequences, and one forward over several of them. Knows no framework.

An engine is made for one model and owns all that is known of it: what it can verify, what its forwards cost, what its
requests have taught. Whoever calls `Engine.forward`, or a sequence, holds the engine's ``lock``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from antiphon.accel.drafting.draft import EMPTY, Draft, Logits, Tokens

if TYPE_CHECKING:
    from antiphon.accel.drafting.budget import Budget
    from antiphon.accel.drafting.draft import Drafter
    from antiphon.accel.drafting.drafters.recycling_table import Bigrams
    from antiphon.accel.drafting.cost_model import CostModel
    from antiphon.accel.drafting.cost_model import StepCost
    from antiphon.accel.engines.fair_lock import FairLock

Level: TypeAlias = Literal["tree", "linear", "replay", "plain"]
"""What one forward may verify: any tree; a chain, by cropping the cache; a chain, by re-running what was accepted
from a snapshot of the recurrent state; or nothing, which is plain decoding."""


class CachedSequence(Protocol):
    """The memory of one text: the keys and values, or states, of the tokens that the model has read of it.

    Between `Engine.forward` and `keep` it holds every row that was fed; after ``keep`` it holds confirmed tokens alone.
    """

    @property
    def length(self) -> int:
        """How many tokens are held."""

    @property
    def level(self) -> Level:
        """What a forward may verify of this text."""

    @property
    def is_prefilled(self) -> bool:
        """Whether the beginning of the text has been read; the first forward then reads what is not held yet."""

    @property
    def can_batch(self) -> bool:
        """Whether this text may be one of several in a forward."""

    def can_draft_at_prefill(self, context: Tokens) -> bool:
        """Whether the last token of a prompt may be read with a draft beside it, after all the others."""

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """What of a draft can be verified now: ``rows`` rows, ``depth`` levels of guesses, one chain if need be.

        It hangs from the last of so many ``pending`` tokens.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Make the pending tokens and the rows of ``path`` permanent; forget the other rows.

        Tokens of the path that are not held afterwards are fed again, as pending ones of the next forward.
        """

    def reset(self) -> None:
        """Forget everything that was read: after a forward that failed half-way, or where the memory has become void.

        The next forward is fed the whole text.
        """

    def is_evicted(self, context: Tokens) -> bool:
        """Whether the memory has to be restarted before ``context`` goes on."""


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """What one sequence feeds into a forward: its pending tokens, and a draft that hangs from the last of them.

    ``pending`` are the confirmed tokens that the sequence does not hold yet, at least one. ``chunk`` bounds how many
    tokens of a prompt are read at a time.
    """

    sequence: CachedSequence
    pending: Tokens
    draft: Draft = EMPTY
    chunk: int | None = None


class Tenant:
    """Somebody for whom texts are read, equal to nobody else."""


class Engine(Protocol):
    """Whoever runs one model."""

    @property
    def lock(self) -> FairLock:
        """Held during every forward, and by whoever changes what the engine knows."""

    scheduler: object | None
    """The loop that decodes on this engine; None before the first text."""

    @property
    def batch_cost(self) -> CostModel | None:
        """Seconds of forwards over several texts by the rows of all; None where texts do not share them."""

    @property
    def prefill_batch_tokens(self) -> int:
        """How many tokens of several prompts are read sooner in one forward than in one for each; 0 where none are."""

    def forward(self, feeds: Sequence[SequenceInput]) -> list[Logits]:
        """One forward over all of these sequences, of which several are shareable; a single text is a batch of one.

        For each of them the logits after its last pending token and after every row of its draft.
        """


class ModelEngine(Engine, Protocol):
    """An engine that knows its model: what a request asks of it beside forwards, whoever computes them."""

    @property
    def name(self) -> str:
        """What it is called where engines are chosen."""

    @property
    def bigrams(self) -> Bigrams | None:
        """The model's best tokens after each frequent token; None where it cannot be asked."""

    def step_cost(self, *, remeasure: bool = False) -> StepCost:
        """What a forward costs by its rows, as it was measured once, or ``anew``."""

    def budget(
        self, drafter: Drafter, rows: int | None, cost: StepCost | None = None, *, reproducible: bool = False
    ) -> Budget:
        """A budget for one request: of ``rows`` rows, or where that is None by what forwards cost, or by ``cost``.

        A ``reproducible`` one learns neither from the clock nor from other requests.
        """

    def release(self, sequence: CachedSequence) -> None:
        """Give the memory of a text that has ended to others."""
