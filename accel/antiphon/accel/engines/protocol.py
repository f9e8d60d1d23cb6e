"""The engine protocol: the methods that the scheduler and requests call. No framework is imported.

To add an engine, write one class with the methods of `ModelEngine` and another with the methods of
`CachedSequence`, and name the engine in ``selection.py``. ``tests/accel/table_engine.py`` is the
smallest example.

One step of a request, as `antiphon.accel.decoding.step.decode_step` runs it:

1. `CachedSequence.is_evicted`: if the engine has evicted the sequence, the scheduler calls `CachedSequence.reset`, and
   the whole text is prefilled again.
2. The drafter proposes a draft; `CachedSequence.fit` cuts it to the rows that this sequence can verify.
3. `Engine.forward` computes the pending tokens and the rows of the draft, for one sequence or for several.
4. The scheduler verifies the draft with the logits and calls `CachedSequence.keep` with the path of accepted rows.

The first forward pass of a sequence is its prefill, normally without a draft. If the drafter
already has a draft and `CachedSequence.can_draft_at_prefill` returns True, the scheduler splits the
prefill: one forward pass for the prompt without its last token, and one for the last token with the
draft.

Threads: the scheduler has one thread for each engine. This thread computes all forward passes and
calls the methods of the sequences. Other threads create sequences and call `ModelEngine.step_cost`,
``budget`` and ``bigrams``. All threads hold `Engine.lock` during these calls and during forward
passes, so engines need no other locks.

Errors: an exception of ``forward`` is raised in all requests of the forward pass. If a shared
forward pass fails or any forward pass is interrupted, the scheduler calls ``reset`` on the
sequences of that pass; ``reset`` must work in any state. An engine that is out of memory raises
`MemoryError` with a message that says what to change.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from antiphon.accel.drafting.draft import EMPTY, Draft, Drafter, Logits, Tokens
from antiphon.accel.drafting.drafters.head import HiddenStates

if TYPE_CHECKING:
    from transformers import Cache

    from antiphon.accel.drafting.budget import Budget
    from antiphon.accel.drafting.cost_model import CostModel, StepCost
    from antiphon.accel.drafting.drafters.bita import MaskWeights
    from antiphon.accel.drafting.drafters.head import DraftHead
    from antiphon.accel.drafting.drafters.recycling_table import Bigrams
    from antiphon.accel.engines.fair_lock import FairLock

Level: TypeAlias = Literal["tree", "linear", "replay", "plain"]
"""The verification level: the drafts that one forward pass can verify.

"tree" is any draft tree. "linear" is a chain; rejected rows are cropped from the KV cache. "replay"
is a chain too, but the model has a recurrent state: the state is restored from a snapshot, and the
accepted rows are computed again. "plain" is no draft at all.
"""


class CachedSequence(Protocol):
    """The cache (keys and values, recurrent state) of one sequence. `Engine.forward` fills it.

    Between ``forward`` and ``keep`` the cache holds all rows of the forward pass. After ``keep`` it
    holds only confirmed tokens.
    """

    @property
    def length(self) -> int:
        """Number of cached tokens. The pending tokens of the next forward pass start at this position."""

    @property
    def level(self) -> Level:
        """Current verification level of this sequence; it can change as the sequence grows."""

    @property
    def is_prefilled(self) -> bool:
        """Whether a forward pass has run for this sequence. If not, the next pass is the prefill.

        Tokens from a prefix cache count in ``length``, but do not make the sequence prefilled.
        """

    @property
    def can_batch(self) -> bool:
        """Whether this sequence may share a forward pass with others."""

    @property
    def hidden_states(self) -> KeptStates:
        """Hidden states of kept tokens, until a draft head takes them; empty if not collected."""

    def can_draft_at_prefill(self, context: Tokens) -> bool:
        """Return whether the prefill may be split: first all tokens but the last, then the last token with a draft."""

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """Return the part of a draft that the next forward pass can verify.

        Args:
            draft: Draft tree below the last pending token.
            depth: Maximum depth of an accepted row: the number of tokens that the request may still emit, minus one.

        Returns:
            A draft of the most likely rows; a chain if the level is "linear" or "replay"; empty if no draft can be
            verified.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Keep the pending tokens and the accepted rows of the last forward pass, and drop its other rows.

        The scheduler calls `keep` or `discard` once after each forward pass, also after a prefill.
        Confirmed tokens that the cache does not hold afterwards are pending in the next forward
        pass; they start at ``length``.

        Args:
            path: Accepted rows of the draft, the child of the root first; empty without a draft.
        """

    def discard(self) -> None:
        """Drop all rows of the last forward pass, both draft and pending tokens.

        Called instead of `keep` if the same pending tokens are computed again.
        """

    def reset(self) -> None:
        """Drop everything that is cached, in any state. The next pass prefills the whole text."""

    def is_evicted(self, context: Tokens) -> bool:
        """Return whether the cache must be reset before the next forward pass.

        This is the case if the engine gave its memory to other sequences, or if cached values are
        invalid for a text of this length (rotary frequencies may depend on the length).

        Args:
            context: Token ids of the prompt and of everything emitted so far.
        """


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """The input of one sequence to a forward pass: its pending tokens and a draft below the last of them.

    Attributes:
        pending: Confirmed tokens that are not cached yet, at least one; they start at position ``sequence.length``.
        draft: Draft tree whose root is the last pending token, as `CachedSequence.fit` returned it.
        prefill_chunk: Maximum number of prompt tokens per forward pass; None for the engine's default.
        needs_best: Whether the caller will need the most likely tokens, which an engine may compute without all
            logits. True: compute them in this forward pass. False: compute them on demand.
    """

    sequence: CachedSequence
    pending: Tokens
    draft: Draft = EMPTY
    prefill_chunk: int | None = None
    needs_best: bool = False


REPRODUCIBLE_ROWS = 40
"""Number of rows of every forward pass after the prefill of a reproducible request."""


class ThreadSettings(NamedTuple):
    """Settings of the thread that makes a request; the request's forward passes use them.

    Attributes:
        num_threads: Number of threads of one forward pass; 0 if the engine has its own setting.
        autocast: Precision of torch's autocast; None if it is off.
        is_inference: Whether the caller is in torch's inference mode.
    """

    num_threads: int = 0
    autocast: object = None
    is_inference: bool = False

    @property
    def can_batch(self) -> bool:
        """Whether requests with these settings may share forward passes."""
        return self.autocast is None


class AnonymousTenant:
    """A tenant without a name. It equals only itself, so it shares no cached prefixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions:
    """The options of a request's sequence. An engine ignores options that it does not support.

    The torch engine gets all requests that need `cache`, `padding`, `reproducible`, `bita` or `compiled`.

    Attributes:
        tenant: Owner of the text: cached prefixes are shared within one tenant only.
        cache: Cache of transformers to continue from; None for a new one.
        padding: Number of left padding tokens before the prompt.
        reproducible: Whether every forward pass after the prefill has `REPRODUCIBLE_ROWS` rows. In these passes the
            logits of a row are bitwise independent of the other rows.
        bita: Trained BiTA masks that the drafter uses; None: no masks.
        compiled: Whether to use compiled steps; None lets the engine decide.
        hidden_states: Indices of the model's hidden states that the sequence collects for the drafter's head.
    """

    tenant: Hashable
    cache: Cache | None = None
    padding: int = 0
    reproducible: bool = False
    bita: MaskWeights | None = None
    compiled: bool | None = False
    hidden_states: tuple[int, ...] = ()


class Engine(Protocol):
    """Runs the forward passes of one model: the part of an engine that the scheduler needs."""

    @property
    def lock(self) -> FairLock:
        """The lock that callers hold during forward passes; see "Threads" in this module's text."""

    scheduler: object | None
    """The scheduler of this engine, set by `scheduler_of` with the first request; engines initialize it to None."""

    @property
    def batch_cost(self) -> CostModel | None:
        """Cost of a shared forward pass by its total number of rows; None if it was not measured.

        The scheduler compares this cost with the cost of separate forward passes, and updates it
        after each shared pass.
        """

    @property
    def prefill_batch_tokens(self) -> int:
        """Maximum total number of tokens of long prompts that share a prefill; 0: no sharing."""

    def thread_settings(self) -> ThreadSettings:
        """Return the settings of the calling thread."""

    def thread_context(self, settings: ThreadSettings) -> AbstractContextManager[object]:
        """Return a context manager that gives the calling thread these settings."""

    def forward(self, inputs: Sequence[SequenceInput], /) -> list[Logits]:
        """Run one forward pass over the pending tokens and the drafts of one or several sequences.

        Each row attends to the cached and pending tokens of its sequence and to its ancestors in
        the draft. The depth of a row determines its position. An engine may split a prefill into
        several passes of ``prefill_chunk`` tokens. The caller holds the lock.

        Args:
            inputs: One input per sequence. If there are several, `CachedSequence.can_batch` must be
                true for all of these sequences.

        Returns:
            For each sequence, the logits after its last pending token (the root) and after each row
            of its draft: shape (1 + rows, vocab).

        Raises:
            MemoryError: The KV caches of these sequences together do not fit into memory.
        """


class ModelEngine(Engine, Protocol):
    """A complete engine for a language model: it also knows the costs and statistics of its model.

    Requests use it through `antiphon.accel.decoding.model_request`.
    """

    @property
    def name(self) -> str:
        """Name by which users choose this engine, for example "torch"."""

    @property
    def level(self) -> Level:
        """Highest verification level of this model; a sequence may have a lower one."""

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of a request, prompt and answer together; None for no limit.

        Longer requests are run by torch.
        """

    @property
    def bigrams(self) -> Bigrams | None:
        """The model's most likely tokens after each frequent token, computed once; None if they cannot be computed."""

    def step_cost(self, *, remeasure: bool = False) -> StepCost:
        """Return the seconds of forward passes, by number of rows and number of cached tokens.

        The first use measures them.

        Args:
            remeasure: Measure again, even if a measurement is stored.
        """

    def budget(self, drafter: Drafter, num_draft_tokens: int | None, cost: StepCost | None = None) -> Budget:
        """Return the budget of one request. The budget limits the draft rows of each step.

        Args:
            drafter: Drafter of the request. The budget calibrates the drafter's acceptance rates.
            num_draft_tokens: Fixed number of draft rows per step; None adapts it to costs and acceptance rates.
            cost: Costs of forward passes to assume; None: the measured costs, corrected by the times of steps.
        """

    def new_sequence(self, tokens: Tokens, options: SequenceOptions) -> CachedSequence:
        """Return the sequence of a new request; the caller holds the lock.

        Args:
            tokens: Token ids of the prompt. An engine with a prefix cache may return a sequence that already holds
                the beginning of the prompt.
        """

    def missing_for_head(self, head: DraftHead) -> str:
        """Return which of a draft head's inputs this engine cannot provide; empty if it can provide all of them."""

    def cache_of(self, sequence: CachedSequence) -> Cache | None:
        """Return the KV cache as a transformers cache; None if the engine uses another format."""

    def usable_bita(self, *, reproducible: bool = False) -> tuple[MaskWeights | None, str]:
        """Return the BiTA masks trained for this model, or None and why masks cannot be used."""

    def release(self, sequence: CachedSequence) -> None:
        """Release the memory of a finished request's sequence. Called once; the sequence is not used again.

        The caller does not hold the lock.
        """


MAX_TOKENS = 4096
"""Maximum number of tokens whose hidden states are held; a head hardly needs older states."""


class KeptStates:
    """Collects the hidden states of one sequence's accepted rows; rejected rows are never copied.

    Args:
        layers: Indices of the hidden states to collect; if empty, nothing is collected.
    """

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = layers
        self._computed: tuple[Any, ...] = ()
        self._kept: list[HiddenStates] = []

    def note(self, states: Sequence[Any]) -> None:
        """Store the states of the last forward pass: for each of ``layers`` an array of shape (rows, hidden)."""
        self._computed = tuple(states)

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Copy the states of some rows of the last pass; ``start`` is the first row's position."""
        if self._computed:
            newest = rows[-MAX_TOKENS:]
            states = tuple(each[list(newest)] for each in self._computed)
            self._kept.append(HiddenStates(start + len(rows) - len(newest), states))
            while sum(len(part.layers[0]) for part in self._kept[1:]) >= MAX_TOKENS:
                del self._kept[0]
        self._computed = ()

    def take(self) -> list[HiddenStates]:
        """Return the states of all rows that were kept since the last call of this method."""
        taken, self._kept = self._kept, []
        return taken
