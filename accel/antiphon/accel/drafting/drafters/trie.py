"""N-gram trie (Chen et al. 2025): all known continuations of the last tokens as one tree, the most frequent first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal, get_args

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens
from antiphon.accel.drafting.drafters.token_index import END, TokenIndex

Counting = Literal["occurrences", "window"]
"""What a frequency counts: the occurrences of a continuation, or the windows of the paper that contain it."""


class Trie:
    """A `Drafter` of the tree of everything that followed the longest known suffix of the context.

    The last ``prefix`` tokens are looked up, then one fewer, down to one; the first lookup with a continuation is used.
    Rows are sorted by frequency, then by depth, then by first occurrence, so drafts are reproducible. Each
    reference is a separate text; prompt and answer are one text. The draft is the same as if the trie were rebuilt
    with the answer at every step.

    Args:
        n: Window size of the paper, in tokens.
        prefix: Number of tokens to look up (the paper's L_p).
        num_draft: Maximum number of rows.
        depth: Maximum depth of a row, ``n - prefix`` by default.
        counting: "occurrences", or "window" for the counts of the paper's Algorithm 1: every full window of ``n``
            tokens is inserted once for each of its ``prefix`` cuts. A position in the middle of a text then counts up
            to ``prefix`` times, and a continuation that no full window contains does not count.
        include_prompt: Whether to draft from the prompt.
        include_output: Whether to draft from the answer.

    Raises:
        ValueError: ``n``, ``prefix``, ``num_draft``, ``depth`` or ``counting`` is out of range.
    """

    def __init__(
        self,
        n: int = 13,
        prefix: int = 3,
        num_draft: int = 64,
        *,
        depth: int | None = None,
        counting: Counting = "occurrences",
        include_prompt: bool = True,
        include_output: bool = True,
    ) -> None:
        if not 1 <= prefix < n:
            raise ValueError(f"prefix (L_p) is {prefix} and n is {n}; a window needs 1 <= prefix < n tokens.")
        if num_draft < 1:
            raise ValueError(f"num_draft is {num_draft}; a draft needs at least 1 row.")
        if depth is not None and depth < 1:
            raise ValueError(f"depth is {depth}; a draft is at least 1 token deep.")
        if counting not in get_args(Counting):
            raise ValueError(f"counting is {counting!r}; choose one of {', '.join(get_args(Counting))}.")
        self.n, self.prefix, self.num_draft = n, prefix, num_draft
        self.depth = n - prefix if depth is None else depth
        self.counting = counting
        self._include_prompt, self._include_output = include_prompt, include_output
        self.begin((), ())

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Index the prompt, and each reference as a separate text."""
        self._index = TokenIndex()
        for reference in references:
            self._index.extend(reference)
            self._index.close()
        if self._include_prompt:
            self._index.extend(prompt)
        self._read = len(prompt)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a tree of at most ``num_draft`` and ``budget`` rows; empty if nothing followed the last token."""
        if self._include_output:
            self._index.extend(context[self._read :])
            self._read = max(self._read, len(context))
        matches = self._index.find_matches(context[-self.prefix :], self.prefix)
        for matched in range(len(matches), 0, -1):
            draft = self._grow(matches[matched - 1], matched, min(budget, self.num_draft))
            if draft.tokens:
                return draft
        return EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Ignore the step: `propose` gets the whole context."""

    def _grow(self, positions: Sequence[int], matched: int, rows: int) -> Draft:
        """Return the ``rows`` most frequent paths from these positions, parents before children."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        heap: list[tuple[int, int, int, int, int, Sequence[int], float]] = []
        parent, depth, total, chance = ROOT, 1, self._frequency(positions, matched, matched), 1.0
        while len(tokens) < rows:
            if depth <= self.depth:
                agreed = matched + depth - 1
                for token, group in self._index.continuations(positions, depth - 1).items():
                    if count := self._frequency(group, matched, agreed + 1):
                        share = chance * count / total * agreed / (agreed + 1)
                        heappush(heap, (-count, depth, group[0], parent, token, group, share))
            if not heap:
                break
            negative, depth, _, parent, token, positions, chance = heappop(heap)
            tokens.append(token)
            parents.append(parent)
            chances.append(chance)
            parent, depth, total = len(tokens) - 1, depth + 1, -negative
        return Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances))

    def _frequency(self, positions: Sequence[int], matched: int, length: int) -> int:
        """Return the frequency of a path of ``length`` tokens, whose first ``matched`` tokens precede each position."""
        if self.counting == "occurrences":
            return len(positions)
        return sum(self._windows(position - matched, length) for position in positions)

    def _windows(self, start: int, length: int) -> int:
        """Return how many windows of n tokens contain the path of ``length`` tokens that begins at ``start``.

        A window begins j tokens before ``start``, with 0 <= j < prefix and n - j >= length, inside the same text.
        """
        tokens, before, ahead = self._index.tokens, 0, length
        while before < self.prefix - 1 and tokens[start - before - 1] != END:
            before += 1
        while ahead < self.n and tokens[start + ahead] != END:
            ahead += 1
        return max(0, min(before, self.n - length) - max(0, self.n - ahead) + 1)
