"""The engine: one graph, its memory, and forwards over several texts. Knows no drafters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from threading import RLock
from typing import TYPE_CHECKING
from weakref import WeakSet

from torch import Tensor

from antiphon.accel.drafting.draft import EMPTY, Draft, Logits, Tokens
from antiphon.accel.drafting.acceptance_stats import AcceptanceStats, initial_stats, make_budget
from antiphon.accel.engines.fair_lock import FairLock
from antiphon.accel.engines.numpy_logits import NumpyLogits
from antiphon.accel.engines.openvino.block_pool import BlockPool, OutOfBlocks
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.paged_memory import BlockStorage, block_bytes
from antiphon.accel.engines.openvino.paged_attention import BLOCK
from antiphon.accel.engines.openvino.sequence import PagedSequence, PagedMemory
from antiphon.accel.engines.protocol import SequenceInput, Tenant

if TYPE_CHECKING:
    from torch import Tensor

    from antiphon.accel.drafting.budget import Budget
    from antiphon.accel.drafting.draft import Drafter
    from antiphon.accel.drafting.drafters.recycling_table import Bigrams
    from antiphon.accel.drafting.cost_model import CostModel
    from antiphon.accel.drafting.cost_model import StepCost
    from antiphon.accel.engines.protocol import CachedSequence

CHUNK = 1024
"""Tokens of a prompt that are read in one forward: SmolLM2 reads 900 in one 7 % sooner than in two, and 13 % than in
four."""

PREFILL_BATCH_TOKENS = 4608
"""Tokens of several prompts that are read in one forward: eight of 560 tokens take a fifth less so than one by one, and
the first text does not wait for all of them."""

Ask = Callable[[Callable[[Draft, int], Tensor]], "Bigrams | None"]
"""Asks a model for its bigrams, given a forward of a fresh text: a root token, and a draft below it."""

Measure = Callable[["OpenVINOEngine", bool], "StepCost"]
"""What forwards of an engine cost, as it was measured before or is now; where it says True, it is measured anew."""

AHEAD = 8192, 256 << 20
"""For so many tokens, and so many bytes at most, memory is claimed before it is used. On a virtual machine the first
write to a page of 2 MiB takes up to 3 ms, and each layer has pages of its own: prompts of SmolLM2 took 25 ms longer."""

WIDE = 256
"""Windows smaller than this do not hold the trees by which bigrams are asked for."""

BESIDE = 32
"""Pending tokens that are read beside a tree, whose table is quadratic in them; what comes before is read by itself."""


class OpenVINOEngine:
    """Runs one model as a graph over memory of ``memory`` bytes at most, which all of its texts share.

    ``window`` is the smallest window of its layers, ``positions`` where the model's context ends. Where memory is
    short, blocks that only might be asked for again are forgotten first; then the texts that were used least recently
    are, and have to be read again.

    Forwards take turns under ``lock``, which may be another engine's as well. ``bigrams`` asks for those of the model.

    Raises:
        ValueError: the memory does not hold two blocks.
    """

    name = "openvino"
    prefill_batch_tokens = PREFILL_BATCH_TOKENS

    def __init__(
        self,
        graph: PagedGraph,
        *,
        memory: int,
        window: int | None = None,
        positions: int | None = None,
        chunk: int = CHUNK,
        lock: FairLock | None = None,
        bigrams: Ask | None = None,
    ) -> None:
        self._each = each = block_bytes(graph.heads, graph.precision)
        blocks = memory // each
        if blocks < 2:
            raise ValueError(
                f"memory is {memory} bytes, and a block of {BLOCK} tokens takes {each} in this model; give it room for "
                f"at least two, {2 * each} bytes."
            )
        self.graph = graph
        self.chunk = chunk
        self.window = window
        self.positions = positions
        self.acceptance_stats: AcceptanceStats | None = None
        self.lock = FairLock() if lock is None else lock
        self.scheduler: object | None = None
        self.pool = BlockPool(blocks)
        memory_of_blocks = BlockStorage(graph.heads, blocks, graph.precision)
        self._paged = PagedMemory(self.pool, memory_of_blocks, deque(), RLock(), deque(), window, positions)
        graph.attach(self._paged.memory)
        self._texts: WeakSet[PagedSequence] = WeakSet()
        self._forwards = 0
        self._measure: Measure | None = None
        self._cost: StepCost | None = None
        self._ask = bigrams
        self._bigrams: Bigrams | None = None

    @property
    def batch_cost(self) -> CostModel | None:
        """Seconds of forwards over several texts by the rows of all; None where nothing was measured."""
        return None if self.acceptance_stats is None else self.acceptance_stats.batch_cost

    def costs(self, measure: Measure) -> None:
        """Take what forwards cost from here on."""
        self._measure = measure
        self.step_cost()

    def step_cost(self, *, remeasure: bool = False) -> StepCost:
        """What a forward costs by its rows, as it was measured once, or ``anew``.

        Raises:
            ValueError: nobody has said how it is measured.
        """
        if self._measure is None:
            raise ValueError("What a forward of this engine costs was not measured; tell it by `costs`.")
        if remeasure or self._cost is None:
            self._cost = self._measure(self, remeasure)
            self.acceptance_stats = initial_stats(self._cost)
        return self._cost

    def budget(
        self, drafter: Drafter, rows: int | None, cost: StepCost | None = None, *, reproducible: bool = False
    ) -> Budget:
        """A budget for one request, as `antiphon.accel.drafting.acceptance_stats.make_budget` makes it.

        A ``reproducible`` one takes what was measured of the model for its cost.
        """
        if cost is None and rows is None and reproducible:
            cost = self.step_cost()
        return make_budget(drafter, rows, cost, lambda: self.acceptance_stats)

    @property
    def bigrams(self) -> Bigrams | None:
        """The model's best tokens after each frequent token, asked for once; None where it cannot be asked."""
        if self._ask is not None and (self.window is None or self.window > WIDE):
            self._bigrams = self._ask(self._siblings)
        self._ask = None
        return self._bigrams

    def release(self, sequence: CachedSequence) -> None:
        """Give the memory of a text that has ended to others; until they take it, what was read is found again."""
        sequence.reset()

    @property
    def capacity(self) -> int:
        """How many tokens the memory holds, of all texts together."""
        return self.pool.blocks * BLOCK

    def claim(self) -> None:
        """Have the system give memory to the blocks that are used first, while nobody waits for them; see `AHEAD`."""
        tokens, size = AHEAD
        for block in range(min(tokens // BLOCK, size // self._each, self.pool.blocks)):
            with self._paged.guard:
                if self.pool.is_free(block):
                    self._paged.memory.touch(block)

    def sequence(self, text: Tokens = (), *, tenant: Hashable = None, shared: bool = True) -> PagedSequence:
        """The memory of one more text, which already holds what is known of its beginning to this ``tenant``.

        Unless it may be ``shared`` its forwards are its own. What was read for a tenant is forgotten when nobody has
        the tenant any more, unless it is a name or a number.
        """
        sequence = PagedSequence(self._paged, tenant)
        sequence.can_batch = shared
        with self._paged.guard:
            self._collect()
            sequence.adopt(text)
        self._texts.add(sequence)
        return sequence

    def imagined(self, length: int) -> PagedSequence:
        """A text of so many tokens that nobody has read, to measure what a forward after them takes."""
        sequence = self.sequence(tenant=Tenant())
        sequence.imagine(length)
        return sequence

    def fork(self, sequence: PagedSequence) -> PagedSequence:
        """The memory of another text that goes on from all that this one has confirmed."""
        other = sequence.fork()
        self._texts.add(other)
        return other

    def forward(self, feeds: Sequence[SequenceInput]) -> list[Logits]:
        """For each text the logits after its last pending token and after every row of its draft.

        Prompts are read in chunks first, the texts side by side.

        Raises:
            OutOfBlocks: the memory does not hold all of these texts at once.
        """
        self._forwards += 1
        pending = [list(feed.pending) for feed in feeds]
        while any(reads := [self._ahead(feed, left) for feed, left in zip(feeds, pending, strict=True)]):
            self._read(feeds, [left[:count] for left, count in zip(pending, reads, strict=True)])
            pending = [left[count:] for left, count in zip(pending, reads, strict=True)]
        sequences = [_own(feed) for feed in feeds]
        with self._paged.guard:
            self._reserve(sequences, [len(left) + len(feed.draft) for feed, left in zip(feeds, pending, strict=True)])
            shares = [s.feed(left, feed.draft) for s, feed, left in zip(sequences, feeds, pending, strict=True)]
        logits = self.graph.run(shares)
        answers: list[Logits] = []
        for share in shares:
            answers.append(NumpyLogits(logits[: share.asked]))
            logits = logits[share.asked :]
        return answers

    def _siblings(self, draft: Draft, root: int) -> Tensor:
        """A forward of a fresh text, for whoever asks the model about many tokens at once."""
        sequence = self.sequence(tenant=Tenant())
        logits = self.forward([SequenceInput(sequence, (root,), draft)])[0].tensor()
        sequence.reset()
        return logits

    def _ahead(self, feed: SequenceInput, left: Sequence[int]) -> int:
        """How many of the tokens that are left are read without their logits now."""
        chunk = min(feed.chunk or self.chunk, self.chunk)
        most = min(chunk, BESIDE) if len(feed.draft) else chunk
        return min(chunk, len(left) - (1 if len(feed.draft) else most)) if len(left) > most else 0

    def _read(self, feeds: Sequence[SequenceInput], chunks: Sequence[Tokens]) -> None:
        """Read a part of the prompts, and confirm it."""
        sequences = [_own(feed) for feed in feeds]
        reading = [(sequence, chunk) for sequence, chunk in zip(sequences, chunks, strict=True) if chunk]
        with self._paged.guard:
            self._reserve(sequences, [len(chunk) for chunk in chunks])
            shares = [sequence.feed(chunk, EMPTY, asked=False) for sequence, chunk in reading]
        self.graph.run(shares)
        for sequence, _ in reading:
            sequence.keep(())

    def _reserve(self, sequences: Sequence[PagedSequence], rows: Sequence[int]) -> None:
        """Take the blocks for all rows, if need be from texts that are not in this forward."""
        self._collect()
        for sequence in sequences:
            sequence.used = self._forwards
        wanted = sum(sequence.lacks(count) for sequence, count in zip(sequences, rows, strict=True))
        others = sorted((text for text in self._texts if text not in sequences), key=lambda text: text.used)
        for text in others:
            if wanted <= self.pool.available:
                break
            text.preempt()
        if wanted > self.pool.available:
            tokens = sum(len(sequence.tokens) + count for sequence, count in zip(sequences, rows, strict=True))
            raise OutOfBlocks(
                f"{len(sequences)} texts of {tokens} tokens together are in one forward, and the engine's memory holds "
                f"{self.capacity}; give it more (memory=...), decode fewer texts at once, or shorten them."
            )
        for sequence, count in zip(sequences, rows, strict=True):
            sequence.reserve(count)

    def _collect(self) -> None:
        """Take back the blocks of texts that nobody has any more, and forget what tenants had read that are gone."""
        while self._paged.left:
            self.pool.release(self._paged.left.popleft())
        while self._paged.gone:
            self.pool.forget(self._paged.gone.popleft())


def _own(feed: SequenceInput) -> PagedSequence:
    if not isinstance(feed.sequence, PagedSequence):
        raise TypeError(f"This engine reads its own sequences; it was given a {type(feed.sequence).__name__}.")
    return feed.sequence
