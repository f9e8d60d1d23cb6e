"""Drafters that know the answer or lie about it, and one that writes everything down: what the engine is tried with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Drafter, Logits, Tokens, chain
from antiphon.accel.engines.torch.bita_weights import bita_weights_of

if TYPE_CHECKING:
    from torch import Tensor


class OracleDrafter:
    """Drafts the next ``depth`` tokens of a text it was told: every step emits ``depth + 1`` of them."""

    def __init__(self, text: Tokens, depth: int) -> None:
        self.text = text
        self.depth = depth

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Nothing to read: it knows already."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """The truth, as a chain."""
        return chain(self.text[len(context) :][: min(self.depth, budget)])

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Nothing to learn."""


class WrongDrafter(OracleDrafter):
    """Drafts a chain whose first token is always wrong: every step emits one token."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """The truth with its first token changed."""
        truth = super().propose(context, budget)
        return chain((abs(truth.tokens[0] - 1), *truth.tokens[1:])) if truth.tokens else EMPTY


class RandomTreeDrafter:
    """Random trees around the true path: decoys, duplicate siblings, token id 0, dead branches, empty drafts.

    ``vocabulary`` bounds the decoys; the same ``seed`` grows the same trees.
    """

    def __init__(self, text: Tokens, seed: int, vocabulary: int) -> None:
        self.text = text
        self.random = random.Random(seed)
        self.vocabulary = vocabulary

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Nothing to read: it knows already."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Up to six true tokens somewhere in a tree of at most ``budget`` rows."""
        chance = self.random.random
        tokens: list[int] = []
        parents: list[int] = []
        trunk = ROOT
        for token in self.text[len(context) :][: self.random.randint(0, 6)]:
            for _ in range(self.random.randint(0, 2)):
                tokens.append(0 if chance() < 0.3 else self.random.randrange(self.vocabulary))
                parents.append(trunk if chance() < 0.7 else len(tokens) - 2)
            tokens.append(token)
            parents.append(trunk)
            trunk = len(tokens) - 1
            if chance() < 0.3:  # a duplicate sibling, sometimes with the truth growing below the wrong one
                tokens.append(token)
                parents.append(parents[trunk])
                trunk = len(tokens) - 1 if chance() < 0.3 else trunk
        rows = min(len(tokens), budget)
        return Draft(tuple(tokens[:rows]), tuple(parents[:rows]), (1.0,) * rows)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Nothing to learn."""


class ProbingDrafter:
    """Passes another drafter's drafts on with up to eight probes below their rows; the first forward has some, too.

    Some probes guess right: their tokens are drawn from what the true ``text`` says next, or below ``vocabulary``.
    """

    def __init__(self, drafter: Drafter, text: Tokens, seed: int, vocabulary: int) -> None:
        self.drafter = drafter
        self.text = text
        self.random = random.Random(seed)
        self.vocabulary = vocabulary

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Probes alone."""
        self.drafter.begin(prompt, references)
        return self._ask(EMPTY, len(prompt))

    def propose(self, context: Tokens, budget: int) -> Draft:
        """The other drafter's guess, and probes below it."""
        return self._ask(self.drafter.propose(context, budget), len(context))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Pass it on."""
        self.drafter.observe(draft, accepted, logits)

    def _ask(self, draft: Draft, length: int) -> Draft:
        tokens, parents, probes = list(draft.tokens), list(draft.parents), self.random.randint(0, 8)
        for _ in range(probes):
            parents.append(self.random.randrange(ROOT, len(tokens)))
            tokens.append(self.random.choice([*self.text[length : length + 3], self.random.randrange(self.vocabulary)]))
        return Draft(tuple(tokens), tuple(parents), (*draft.chances, *(0.5,) * probes), probes)


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What a recorder saw of one step: how long the text was before it, the draft, what was accepted, and the logits."""

    length: int
    draft: Draft
    accepted: Accepted
    logits: Tensor


class RecordingDrafter:
    """Passes another drafter's work through and keeps a record of every step in ``records``."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.bita_weights = bita_weights_of(drafter)
        self.records: list[RecordedStep] = []
        self.length = 0

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Start a new record."""
        self.records = []
        self.length = len(prompt)
        return self.drafter.begin(prompt, references)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """The other drafter's guess."""
        return self.drafter.propose(context, budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Record the step and pass it on."""
        if logits is not None:
            self.records.append(RecordedStep(self.length, draft, accepted, logits.tensor().clone()))
        self.length += len(accepted.tokens)
        self.drafter.observe(draft, accepted, logits)
