"""Draft heads for tests that guess without weights (often right, random, NaN, always wrong) and run in every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import nan
from typing import Any

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.drafting.drafters.head import DraftHead, Guesses, HeadStats, HiddenStates
from tests.tiny import VOCAB_SIZE


class Eager(HeadStats):
    """Runs the head to its full depth in every step, whatever it costs and brings."""

    def pays(self, gains: Sequence[float]) -> bool:
        """Return True."""
        return True


class AdversarialHead(DraftHead):
    """A `DraftHead` whose sessions are `AdversarialSession`s.

    Args:
        kind: "random": random tokens and probabilities; "right": the same, but most of the best guesses are tokens of
            ``text``; "nan": probabilities of NaN after the first passes; "wrong":
            a token that nothing contains, as if it were certain; "never": NaN alone.

    Attributes:
        text: Prompt and text of plain decoding, for "right".
        last: The session of the latest text.
    """

    text: Tokens = ()
    layers: tuple[int, ...] = (-1,)

    def __init__(self, kind: str = "random") -> None:
        self.name, self.stats = kind, Eager()
        self.last = AdversarialSession(kind, 0)

    def session(self, cache: object) -> AdversarialSession:
        """Return a session that checks what it reads."""
        self.last = AdversarialSession(self.name, self.last.seed + 1, self.text)
        return self.last


class AdversarialSession:
    """Checks that hidden states of consecutive tokens are read once each, and collects them.

    Attributes:
        passes: Number of passes.
        states: The hidden states that were read, as lists, with the position of the first one.
    """

    def __init__(self, kind: str, seed: int, text: Tokens = ()) -> None:
        self.kind, self.seed, self.random, self.text = kind, seed, random.Random(seed), text
        self.start = self.end = self.place = -1
        self.passes = 0
        self.states: list[Any] = []

    def read(self, states: Sequence[HiddenStates], tokens: Tokens, width: int) -> Guesses:
        """Guess after checking the states."""
        for part in states:
            assert part.start == self.end or self.end < 0
            self.start = part.start if self.end < 0 else self.start
            self.end = part.start + len(part.layers[0])
            self.states += part.layers[0].tolist()
        assert sum(len(part.layers[0]) for part in states) == len(tokens)
        self.place = self.end
        return self.guess(tokens[-1], width)

    def guess(self, token: int, width: int) -> Guesses:
        """Return bad guesses."""
        self.passes += 1
        self.place += 1
        if self.kind == "never":
            return [(0, nan)] * width
        if self.kind == "wrong":
            return [(VOCAB_SIZE - 1, 1.0)]
        chances = sorted((self.random.random() for _ in range(width)), reverse=True)
        if self.kind == "nan" and self.random.random() < 0.4:
            chances = [nan] * width
        found = [(self.random.randrange(VOCAB_SIZE), chance) for chance in chances]
        if self.kind == "right" and self.place < len(self.text) and self.random.random() < 0.8:
            found[0] = (self.text[self.place], chances[0])
        return found
