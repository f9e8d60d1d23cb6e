"""N-gram trie: every known continuation of the last tokens as one tree, the most frequent rows first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal, get_args

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens
from antiphon.accel.drafting.drafters.occurrences import END, Occurrences

Counting = Literal["occurrences", "window"]
"""What a frequency counts: the places where a continuation stands, or the paper's windows that hold it there."""


class Trie:
    """Drafts a tree: what followed the longest known suffix of the context, up to ``num_draft`` rows by frequency.

    The last ``prefix`` tokens (the paper's L_p) are looked up, then one fewer, down to one; the first hit answers.
    Rows go ``n - prefix`` tokens deep, or ``depth`` if that is given. Equal frequencies go by depth, shallow first,
    then by what was seen first, so that the draft is the same in every run. References are looked up each by itself;
    prompt and answer are one text, and the answer counts as if the trie were built anew at every step.

    ``counting="window"`` counts as the paper's Algorithm 1 does: every full window of ``n`` tokens is inserted once
    for each of its ``prefix`` cuts, so a place in the middle of a text counts up to ``prefix`` times and a
    continuation that no full window holds counts nothing.

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
        """Index the references, each alone, and the prompt."""
        self._occurrences = Occurrences()
        for reference in references:
            self._occurrences.extend(reference)
            self._occurrences.close()
        if self._include_prompt:
            self._occurrences.extend(prompt)
        self._read = len(prompt)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """A tree of at most ``num_draft`` and at most ``budget`` rows; empty where nothing followed the last token."""
        if self._include_output:
            self._occurrences.extend(context[self._read :])
            self._read = max(self._read, len(context))
        matches = self._occurrences.after(context[-self.prefix :], self.prefix)
        for matched in range(len(matches), 0, -1):
            draft = self._grow(matches[matched - 1], matched, min(budget, self.num_draft))
            if draft.tokens:
                return draft
        return EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Nothing: the context given to ``propose`` holds everything that is needed."""

    def _grow(self, places: Sequence[int], matched: int, rows: int) -> Draft:
        """The ``rows`` most frequent paths after ``places``: a child is never more frequent than its parent."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        heap: list[tuple[int, int, int, int, int, Sequence[int], float]] = []
        parent, depth, total, chance = ROOT, 1, self._frequency(places, matched, matched), 1.0
        while len(tokens) < rows:
            if depth <= self.depth:
                agreed = matched + depth - 1
                for token, group in self._occurrences.continuations(places, depth - 1).items():
                    if count := self._frequency(group, matched, agreed + 1):
                        share = chance * count / total * agreed / (agreed + 1)
                        heappush(heap, (-count, depth, group[0], parent, token, group, share))
            if not heap:
                break
            negative, depth, _, parent, token, places, chance = heappop(heap)
            tokens.append(token)
            parents.append(parent)
            chances.append(chance)
            parent, depth, total = len(tokens) - 1, depth + 1, -negative
        return Draft.trusted(tuple(tokens), tuple(parents), tuple(chances))

    def _frequency(self, places: Sequence[int], matched: int, length: int) -> int:
        """The frequency f of a path of ``length`` tokens, ``matched`` of which stand before each of ``places``."""
        if self.counting == "occurrences":
            return len(places)
        return sum(self._windows(place - matched, length) for place in places)

    def _windows(self, start: int, length: int) -> int:
        """How many windows of n tokens begin j tokens before ``start`` (0 <= j < prefix) and hold the whole path.

        The path is the ``length`` tokens from ``start`` on: j is limited by what stands before, and n - j >= length.
        """
        tokens, before, ahead = self._occurrences.tokens, 0, length
        while before < self.prefix - 1 and tokens[start - before - 1] != END:
            before += 1
        while ahead < self.n and tokens[start + ahead] != END:
            ahead += 1
        return max(0, min(before, self.n - length) - max(0, self.n - ahead) + 1)
