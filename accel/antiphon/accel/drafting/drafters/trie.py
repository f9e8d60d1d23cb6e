"""N-gram trie (Chen et al. 2025): draft the known continuations of the last tokens as a tree, most frequent first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens
from antiphon.accel.drafting.drafters.token_index import TokenIndex


class Trie:
    """A `Drafter` that drafts all continuations of the longest known suffix of the context as a tree.

    The last ``prefix`` tokens are looked up, then one token fewer, and so on, down to the last
    token alone; the first lookup with a continuation is used. Rows are sorted by frequency, then by
    depth, then by first occurrence, so drafts are reproducible. Each reference is a separate text;
    prompt and answer are one text. Drafts also use the answer so far, as if the trie were rebuilt
    at every step.

    Args:
        n: Window size of the paper, in tokens.
        prefix: Number of tokens to look up (the paper's L_p).

    Raises:
        ValueError: ``n`` or ``prefix`` is out of range.
    """

    def __init__(self, n: int = 13, prefix: int = 3) -> None:
        if not 1 <= prefix < n:
            raise ValueError(f"prefix (L_p) is {prefix} and n is {n}; a window needs 1 <= prefix < n tokens.")
        self.prefix, self.depth = prefix, n - prefix
        self.begin((), ())

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Index the prompt, and each reference as a separate text."""
        self._index = TokenIndex()
        for reference in references:
            self._index.extend(reference)
            self._index.close()
        self._index.extend(prompt)
        self._read = len(prompt)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a tree of at most ``budget`` rows; empty if nothing followed the last token."""
        self._index.extend(context[self._read :])
        self._read = max(self._read, len(context))
        matches = self._index.find_matches(context[-self.prefix :], self.prefix)
        for matched in range(len(matches), 0, -1):
            draft = self._grow(matches[matched - 1], matched, budget)
            if draft.tokens:
                return draft
        return EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Ignore the step, because `propose` gets the whole context."""

    def _grow(self, positions: Sequence[int], matched: int, rows: int) -> Draft:
        """Return the ``rows`` most frequent paths from these positions, parents before children."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        heap: list[tuple[int, int, int, int, int, Sequence[int], float]] = []
        parent, depth, total, chance = ROOT, 1, len(positions), 1.0
        while len(tokens) < rows:
            if depth <= self.depth:
                agreed = matched + depth - 1
                for token, group in self._index.continuations(positions, depth - 1).items():
                    share = chance * len(group) / total * agreed / (agreed + 1)
                    heappush(heap, (-len(group), depth, group[0], parent, token, group, share))
            if not heap:
                break
            negative, depth, _, parent, token, positions, chance = heappop(heap)
            tokens.append(token)
            parents.append(parent)
            chances.append(chance)
            parent, depth, total = len(tokens) - 1, depth + 1, -negative
        return Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances))
