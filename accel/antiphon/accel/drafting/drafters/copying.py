"""LLMA: find the answer's last tokens in a reference and copy what follows them (Yang et al. 2023, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, get_args

from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Logits, Tokens, chain
from antiphon.accel.drafting.drafters.occurrences import END, Occurrences

Tie = Literal["first", "last", "random"]
"""Which of several equally long matches is copied."""


class Copying:
    """Drafts one chain: the ``k`` tokens after the longest match of the answer's last tokens in a reference.

    ``n`` to ``max_n`` tokens must match; the longest match wins, and ``tie`` chooses among equals ("random" by
    ``seed``, anew for every request). A copy ends with its reference and never runs into the next one; a match that
    nothing follows is passed over for the next one. Only generated tokens are looked up, as in the paper;
    ``use_prompt_tail`` lets the end of the prompt take part. ``k`` is the paper's: tokens copied, the root not counted.

    ``strict_official`` does what the authors' code does at the end of a reference: the match counts even if nothing
    follows it, and the step is a plain one.

    Raises:
        ValueError: ``n``, ``max_n``, ``k`` or ``tie`` is out of range.
    """

    def __init__(
        self,
        n: int = 1,
        k: int = 18,
        *,
        max_n: int = 5,
        tie: Tie = "first",
        seed: int = 0,
        strict_official: bool = False,
        use_prompt_tail: bool = False,
    ) -> None:
        if not 1 <= n <= max_n:
            raise ValueError(f"n is {n} and max_n is {max_n}; a match needs 1 <= n <= max_n tokens.")
        if k < 1:
            raise ValueError(f"k is {k}; a copy needs at least 1 token.")
        if tie not in get_args(Tie):
            raise ValueError(f"tie is {tie!r}; choose one of {', '.join(get_args(Tie))}.")
        self.n, self.k, self.max_n, self.tie = n, k, max_n, tie
        self._seed, self._strict_official, self._use_prompt_tail = seed, strict_official, use_prompt_tail
        self.begin((), ())

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Index the references; of the prompt only its length matters, for that is where the answer begins."""
        self._random = Random(self._seed)
        self._start = 0 if self._use_prompt_tail else len(prompt)
        self._occurrences = Occurrences()
        for reference in references:
            self._occurrences.extend(reference)
            self._occurrences.close(is_place=self._strict_official)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """One chain of at most ``k`` and at most ``budget`` tokens; empty where fewer than ``n`` tokens match."""
        tail = context[max(self._start, len(context) - self.max_n) :]
        matches = self._occurrences.after(tail, self.max_n)
        if len(matches) < self.n or budget < 1:
            return EMPTY
        copy = self._copy(self._choose(matches[-1]), min(self.k, budget))
        return chain(copy, _chances(len(matches), len(copy)))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Nothing: the context given to ``propose`` holds everything that is needed."""

    def _choose(self, places: Sequence[int]) -> int:
        if self.tie == "random":
            return self._random.choice(places)
        return places[0] if self.tie == "first" else places[-1]

    def _copy(self, place: int, length: int) -> list[int]:
        copy = self._occurrences.tokens[place : place + length]
        return copy[: copy.index(END)] if END in copy else copy


def _chances(matched: int, rows: int) -> list[float]:
    """A copy after m matching tokens begins well in about m / (m + 2) of the cases, and goes on in m / (m + 1.5).

    Measured on recorded answers to four kinds of questions: beginnings 0.22 to 0.34 at m = 1, 0.5 at 2, 0.6 at 3;
    going on 0.33 to 0.72 at m = 2, 0.66 to 0.84 at 5, 0.82 to 0.9 at 8, 0.78 to 0.94 at 12.
    """
    chances: list[float] = []
    for m in range(matched, matched + rows):
        chances.append(chances[-1] * m / (m + 1.5) if chances else m / (m + 2))
    return chances
