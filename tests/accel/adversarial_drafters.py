"""Drafters for tests: they know the expected text, or propose wrong or random drafts, or record every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon.accel.decoding.model_request import head_part
from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Drafter, Logits, Tokens, chain
from antiphon.accel.engines.torch.bita_weights import bita_weights_of
from antiphon.accel.generate import generate
from tests.tiny import VOCAB_SIZE

if TYPE_CHECKING:
    from torch import Tensor


class KnowingDrafter:
    """Learns nothing, because it knows the expected text.

    Args:
        text: Expected text with its prompt.
    """

    def __init__(self, text: Tokens) -> None:
        self.text = text

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Do nothing."""

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Do nothing."""


class OracleDrafter(KnowingDrafter):
    """Drafts the next tokens of the expected text: every step emits ``depth + 1`` tokens."""

    def __init__(self, text: Tokens, depth: int) -> None:
        super().__init__(text)
        self.depth = depth

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return the next tokens of the text as a chain."""
        return chain(self.text[len(context) :][: min(self.depth, budget)])


class WrongDrafter(OracleDrafter):
    """Drafts a chain whose first token is always wrong: every step emits one token. Arguments as `OracleDrafter`."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return the next tokens of the text with the first one changed."""
        draft = super().propose(context, budget)
        return chain((abs(draft.tokens[0] - 1), *draft.tokens[1:])) if draft.tokens else EMPTY


class RandomTreeDrafter(KnowingDrafter):
    """Drafts random trees around the expected text, with wrong tokens, duplicate siblings and token 0; some are empty.

    Args:
        seed: Random seed; the same seed gives the same trees.
        vocab_size: Wrong tokens are below it.
    """

    def __init__(self, text: Tokens, seed: int, vocab_size: int) -> None:
        super().__init__(text)
        self.random = random.Random(seed)
        self.vocab_size = vocab_size

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a tree of at most ``budget`` rows, one path of which has up to six right tokens."""
        chance = self.random.random
        tokens: list[int] = []
        parents: list[int] = []
        trunk = ROOT
        for token in self.text[len(context) :][: self.random.randint(0, 6)]:
            for _ in range(self.random.randint(0, 2)):
                tokens.append(0 if chance() < 0.3 else self.random.randrange(self.vocab_size))
                parents.append(trunk if chance() < 0.7 else len(tokens) - 2)
            tokens.append(token)
            parents.append(trunk)
            trunk = len(tokens) - 1
            if chance() < 0.3:  # add a duplicate sibling; sometimes the path of right tokens continues below it
                tokens.append(token)
                parents.append(parents[trunk])
                trunk = len(tokens) - 1 if chance() < 0.3 else trunk
        rows = min(len(tokens), budget)
        return Draft(tuple(tokens[:rows]), tuple(parents[:rows]), (1.0,) * rows)


def generate_with_trees(model: Any, prompt: Any, text: Tokens, seed: int, **options: Any) -> Any:
    """Return the output of a request that drafts random trees around the expected text."""
    drafter = partial(RandomTreeDrafter, text, seed, VOCAB_SIZE)
    return generate(model, prompt, num_draft_tokens=32, drafter=drafter, **options)


class ProbingDrafter:
    """Adds up to eight probes to the drafts of another drafter, and drafts probes alone for the first forward pass.

    Some probes are right: their tokens are the next ones of the expected text, or random ones below ``vocab_size``.
    """

    def __init__(self, drafter: Drafter, text: Tokens, seed: int, vocab_size: int) -> None:
        self.drafter = drafter
        self.text = text
        self.random = random.Random(seed)
        self.vocab_size = vocab_size

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Return a draft of probes only."""
        self.drafter.begin(prompt, references)
        return self._add_probes(EMPTY, len(prompt))

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return the other drafter's draft with probes."""
        return self._add_probes(self.drafter.propose(context, budget), len(context))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Forward the step to the other drafter."""
        self.drafter.observe(draft, accepted, logits)

    def _add_probes(self, draft: Draft, length: int) -> Draft:
        tokens, parents, probes = list(draft.tokens), list(draft.parents), self.random.randint(0, 8)
        for _ in range(probes):
            parents.append(self.random.randrange(ROOT, len(tokens)))
            tokens.append(self.random.choice([*self.text[length : length + 3], self.random.randrange(self.vocab_size)]))
        return Draft(tuple(tokens), tuple(parents), (*draft.chances, *(0.5,) * probes), probes)


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One recorded step.

    Attributes:
        length: Number of tokens before the step.
        draft: The verified draft.
        accepted: The accepted rows and the emitted tokens.
        logits: Logits of the root and the rows, shape (1 + rows, vocab).
    """

    length: int
    draft: Draft
    accepted: Accepted
    logits: Tensor


class RecordingDrafter:
    """Wraps another drafter and records every step.

    Attributes:
        records: The steps of the current request.
        length: Number of tokens so far.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.bita_weights = bita_weights_of(drafter)
        self.head = head_part(drafter)
        self.records: list[RecordedStep] = []
        self.length = 0

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Clear the records, and call `begin` of the other drafter."""
        self.records = []
        self.length = len(prompt)
        return self.drafter.begin(prompt, references)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return the other drafter's draft."""
        return self.drafter.propose(context, budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Record the step and forward it to the other drafter."""
        if logits is not None:
            self.records.append(RecordedStep(self.length, draft, accepted, logits.tensor().clone()))
        self.length += len(accepted.tokens)
        self.drafter.observe(draft, accepted, logits)
