"""Draft for one request, with acceptance chances. vLLM is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.draft import (
    EMPTY,
    Accepted,
    Draft,
    Drafter,
    DrafterFactory,
    Tokens,
    chain,
    most_likely_chain,
)
from antiphon.accel.drafting.drafters.token_index import Contained
from antiphon.accel.drafting.row_selection import ScoredDraft
from antiphon.integrations.vllm.admission import Sources

OVERLAP = 4
"""Number of prompt tokens put before the prediction, so that the drafter finds it at the start of the answer."""

EDGE, MIN_INNER = 3, 8
"""The prompt contains a reference if it contains the reference's inner tokens: all but `EDGE` at
each end, at least `MIN_INNER`. At its ends, a passage can be tokenized differently inside a prompt
than alone."""

RELIABLE = 0.9
"""A counted acceptance chance from here on is used even if the drafter's own estimate is lower:
such a draft copies a long text, for which the drafter never estimates more than 0.8."""


class RequestDrafter:
    """Drafts for one request, only from its own prompt, sources and answer.

    Args:
        owner: vLLM's state of the running request. If it differs, the same id belongs to another
            request.
        calibration: Acceptance statistics of all requests.
        vocab_size: Vocabulary size; a draft ends before the first token id outside the vocabulary.
    """

    __slots__ = ("_draft", "_drafter", "_vocab_size", "calibration", "context", "owner")

    def __init__(
        self,
        owner: Any,
        make_drafter: DrafterFactory,
        prompt: Tokens,
        sources: Sources,
        calibration: Calibration,
        vocab_size: int,
    ) -> None:
        self.owner = owner
        self.context = list(prompt)
        self.calibration = RequestCalibration(calibration)
        self._vocab_size = vocab_size
        self._draft: Draft = EMPTY
        self._drafter: Drafter = make_drafter()
        predicted = [[*prompt[-OVERLAP:], *sources.prediction]] if sources.prediction else []
        self._drafter.begin(prompt, [*_outside(sources.references, prompt), *predicted])

    def observe(self, tokens: Sequence[int]) -> None:
        """Add the tokens emitted since the last draft, and update the acceptance statistics."""
        if not tokens:
            return
        num_accepted = 0
        for drafted, token in zip(self._draft.tokens, tokens, strict=False):
            if drafted != token:
                break
            num_accepted += 1
        self._drafter.observe(self._draft, Accepted(tuple(range(num_accepted)), tuple(tokens)), None)
        self.calibration.observe(tokens)
        self.context.extend(tokens)
        self._draft = EMPTY

    def propose(self, num_draft_tokens: int) -> ScoredDraft:
        """Return a chain of at most ``num_draft_tokens``, with this request's acceptance chance of each token."""
        if num_draft_tokens < 1:
            return ScoredDraft(EMPTY, [])
        draft = most_likely_chain(self._drafter.propose(self.context, num_draft_tokens))
        for row, token in enumerate(draft.tokens):
            if not 0 <= token < self._vocab_size:
                draft = chain(draft.tokens[:row], draft.chances[:row])
                break
        return ScoredDraft(draft, cautious_chances(draft.chances, self.calibration.calibrate(draft)))

    def take(self, draft: Draft, num_tokens: int) -> list[int]:
        """Return the first tokens of a proposed chain, and remember that the next step verifies them.

        Args:
            draft: The chain that `propose` returned.
            num_tokens: Number of tokens of the chain to verify.
        """
        self._draft = (
            draft if num_tokens == len(draft) else chain(draft.tokens[:num_tokens], draft.chances[:num_tokens])
        )
        return list(self._draft.tokens)


def cautious_chances(given: Sequence[float], counted: Sequence[float]) -> list[float]:
    """Combine two estimates of a chain's chances: each token gets the lower estimate, unless ``counted`` is reliable.

    The counts are averages over all drafts, so they are too high for later tokens of a draft that
    the drafter itself considers unlikely. The drafter's estimates are too high for texts that the
    model does not repeat.

    Args:
        given: Chance that the chain is accepted up to each token, as the drafter estimates it.
        counted: The same chance, calibrated with the acceptance statistics. A token's own chance,
            given the tokens before it, is kept if it is at least `RELIABLE`.
    """
    chances: list[float] = []
    given_above = counted_above = above = 1.0
    for one, other in zip(given, counted, strict=True):
        own = other / counted_above if counted_above else 0.0
        if own < RELIABLE:
            own = min(own, one / given_above if given_above else 0.0)
        given_above, counted_above, above = one, other, own * above
        chances.append(above)
    return chances


def _outside(references: Sequence[Tokens], prompt: Tokens) -> list[Tokens]:
    """Return the references that the prompt does not contain. A passage in both would count twice."""
    within = Contained(prompt)
    return [each for each in references if len(each) < 2 * EDGE + MIN_INNER or each[EDGE:-EDGE] not in within]
