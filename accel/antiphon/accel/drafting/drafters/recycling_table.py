"""Recycling table: the model's top tokens after a context, kept from earlier forward passes (Token Recycling),
and the drafter that drafts from the table alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens

TOP_K = 8
"""Number of tokens kept per context, as in Token Recycling."""

NO_TOKEN = -1
"""First token of a context key if the context is the start of a text or the last token alone."""

# How often the r-th best token of a context followed when the context occurred again, for contexts
# of two tokens and of one. Measured on greedy answers of SmolLM2-135M. The rank predicts this
# better than the token's probability; the chance of a token is the mean of both estimates.
_RANK_CHANCES = {
    2: np.array([0.62, 0.11, 0.045, 0.02, 0.012, 0.01, 0.008, 0.006], dtype=np.float32),
    1: np.array([0.30, 0.06, 0.045, 0.03, 0.02, 0.015, 0.01, 0.01], dtype=np.float32),
}
_PROBABILITY_FACTORS = {2: 0.7, 1: 0.4}

_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Bigrams:
    """A model's ``TOP_K`` most likely tokens after a single token, best first.

    Attributes:
        tokens: Token ids, shape (tokens, TOP_K); row i has the tokens after token id i.
        chances: Probabilities of ``tokens``, of the same shape.
    """

    tokens: NDArray[np.int32]
    chances: NDArray[np.float32]

    def lookup(self, last: int) -> dict[int, float]:
        """Return the most likely tokens after a single token, with their chances; empty if the token is unknown."""
        return _entry(self.tokens, self.chances, last) if 0 <= last < len(self.tokens) else {}


class RecyclingTable:
    """The model's ``TOP_K`` best tokens after the last two tokens, and after the last token alone.

    This is the table of Token Recycling (Luo et al. 2024, arXiv 2408.08696) with a longer context: every row of every
    forward pass overwrites the entry of its context, and drafts use the entry when the context occurs again. If the
    table is full, the entry that was written longest ago is replaced. An entry takes 64 bytes in two arrays and about
    250 bytes in the index; a full table of the default size takes some 20 MB. Thread-safe.

    Args:
        entries: Maximum number of contexts, at least 2.

    Attributes:
        vocabulary: Vocabulary size of the model; None before the first update.
        prior: The model's best tokens after a single token, for contexts without an entry. It does not depend on
            requests; `clear` keeps it.

    Raises:
        ValueError: ``entries`` is below 2.
    """

    def __init__(self, model: str = "", *, entries: int = 65_536) -> None:
        if entries < 2:
            raise ValueError(f"entries is {entries}; give at least 2, because each row writes two contexts.")
        self.model = model
        self.entries = entries
        self.vocabulary: int | None = None
        self.prior: Bigrams | None = None
        self._slots: OrderedDict[_Key, int] = OrderedDict()
        self._tokens = np.empty((entries, TOP_K), dtype=np.int32)
        self._chances = np.empty((entries, TOP_K), dtype=np.float32)
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Number of known contexts. There is no ``__len__``, because an empty table would then be falsy like None."""
        return len(self._slots)

    def lookup(self, before: int, last: int) -> dict[int, float]:
        """Return the tokens after a context and their chances, best first.

        Args:
            before: The second to last token.

        Returns:
            The entry of both tokens, else the entry of the last token, else the entry in ``prior``, else an empty
            dict.
        """
        with self._lock:
            slot = self._slots.get((before, last))
            if slot is None:
                slot = self._slots.get((NO_TOKEN, last))
            if slot is not None:
                return _entry(self._tokens, self._chances, slot)
        return {} if self.prior is None else self.prior.lookup(last)

    def update(self, tail: Tokens, draft: Draft, logits: Logits | None) -> None:
        """Store the model's most likely next tokens after a text and after each row of its draft.

        Args:
            logits: The model's logits; None changes nothing.

        Raises:
            ValueError: The vocabulary size differs from the size of earlier logits.
        """
        if logits is None or logits.vocab_size < TOP_K:
            return
        self.check_vocabulary(logits.vocab_size)
        tokens, chances = logits.top_k(range(ROOT, len(draft)), TOP_K)
        row_chances = (1.0, *draft.chances)
        # If a context occurs twice, the last entry is stored, so rows with a higher chance are written last.
        order = sorted(range(len(row_chances)), key=row_chances.__getitem__)
        keys = context_keys(tail, draft)
        self.record([keys[row] for row in order], tokens[order], chances[order])

    def record(self, keys: Sequence[_Key], tokens: NDArray[np.integer[Any]], chances: NDArray[np.float32]) -> None:
        """Store the entries of the given contexts. If a context occurs twice, its last entry is stored.

        Args:
            keys: The last two tokens of each context.
            tokens: The best tokens after each context, shape (contexts, TOP_K).
            chances: Probabilities of ``tokens``, of the same shape.
        """
        with self._lock:
            for length, own in ((1, [(NO_TOKEN, last) for _, last in keys]), (2, keys)):
                slots = [self._slot(key) for key in own]
                self._tokens[slots] = tokens
                self._chances[slots] = (_RANK_CHANCES[length] + _PROBABILITY_FACTORS[length] * chances) / 2

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raise ValueError if the vocabulary size differs from the size of earlier logits."""
        self.vocabulary = self.vocabulary or vocabulary
        if vocabulary != self.vocabulary:
            raise ValueError(
                f"This recycling table has the {self.vocabulary:,} tokens of {self.model or 'its model'!r}, and this "
                f"model has {vocabulary:,}; give each model a table of its own."
            )

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._slots.clear()
            self.vocabulary = None

    def _slot(self, key: _Key) -> int:
        slot = self._slots.get(key)
        if slot is not None:
            self._slots.move_to_end(key)
            return slot
        slot = self._slots.popitem(last=False)[1] if len(self._slots) == self.entries else len(self._slots)
        self._slots[key] = slot
        return slot


@runtime_checkable
class SharesTable(Protocol):
    """A drafter that can share a recycling table with other requests."""

    def use_table(self, table: RecyclingTable | None) -> None:
        """Share ``table`` with other requests; if it is None, share no table."""


def recycling_table_of(drafter: object) -> RecyclingTable | None:
    """Return the recycling table that a drafter uses, or None."""
    table = getattr(drafter, "recycling_table", None)
    return table if isinstance(table, RecyclingTable) else None


def context_keys(tail: Tokens, draft: Draft) -> list[_Key]:
    """Return the last two tokens of a text, and the last two tokens at each row of a draft below the text.

    Returns:
        One pair for the root, then one for each row.
    """
    before, last = (NO_TOKEN, NO_TOKEN, *tail)[-2:]
    pairs = [(before, last)]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        pairs.append((last if parent == ROOT else draft.tokens[parent], token))
    return pairs


def _entry(tokens: NDArray[np.int32], chances: NDArray[np.float32], index: int) -> dict[int, float]:
    return dict(zip(tokens[index].tolist(), chances[index].tolist(), strict=True))


class Recycling:
    """A `Drafter` that drafts what the model predicted earlier after the same last tokens.

    The drafter looks up the last two tokens, or else the last token alone. Rows are ranked by the
    product of the chances on their path. So the tree is deep along paths of which the model was
    certain; the paper's tree has a fixed shape. Every row of every forward pass updates the table,
    even if it is not accepted.

    Args:
        table: Table to use and update; requests to the same model can share it. By default the drafter has its own
            table, which each request clears.
    """

    def __init__(self, table: RecyclingTable | None = None) -> None:
        self.recycling_table = RecyclingTable() if table is None else table
        self._clears_table = table is None
        self.begin((), ())

    def use_table(self, table: RecyclingTable | None) -> None:
        """Share ``table`` with other requests, unless it is None or the constructor got a table."""
        if self._clears_table and table is not None:
            self.recycling_table, self._clears_table = table, False

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Remember the last two tokens of the prompt."""
        if self._clears_table:
            self.recycling_table.clear()
        self._tail = tuple(prompt[-2:])

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a tree of at most ``budget`` rows, the most likely ones; empty if the last token is unknown."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        order = count()
        [(before, last)] = context_keys(context[-2:], EMPTY)
        heap = [
            (-chance, next(order), ROOT, last, token)
            for token, chance in self.recycling_table.lookup(before, last).items()
        ]
        heapify(heap)
        while heap and len(tokens) < budget:
            negative, _, parent, before, last = heappop(heap)
            row = len(tokens)
            tokens.append(last)
            parents.append(parent)
            chances.append(-negative)
            for token, chance in self.recycling_table.lookup(before, last).items():
                heappush(heap, (negative * chance, next(order), row, last, token))
        return Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Write the model's top tokens after every row to the table."""
        self.recycling_table.update(self._tail, draft, logits)
        self._tail = (*self._tail, *accepted.tokens)[-2:]
