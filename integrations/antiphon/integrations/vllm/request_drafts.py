"""The drafts of one request: its own drafter, what it has read, and what its guesses were worth. Knows no vLLM."""

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
    likeliest_chain,
)
from antiphon.accel.drafting.drafters.contained import Contained
from antiphon.accel.drafting.paying import ScoredDraft
from antiphon.integrations.vllm.admission import Sources

OPENING = 4
"""So many of the prompt's last tokens stand before a prediction, for it to be found where the answer begins."""

EDGE, LEAST = 3, 8
"""A reference stands in the prompt where its tokens do but for so many at each end, if so many are left: it was
tokenized alone, and at the ends of a passage a prompt has other tokens."""


class RequestDrafts:
    """What is drafted for one request, from its prompt, its references and its own text, and from nothing else.

    ``owner`` is whatever vLLM keeps of the request while it runs: another one under the same id is another request.
    """

    __slots__ = ("_draft", "_drafter", "calibration", "context", "owner")

    def __init__(
        self, owner: Any, make: DrafterFactory, prompt: Tokens, sources: Sources, calibration: Calibration
    ) -> None:
        self.owner = owner
        self.context = list(prompt)
        self.calibration = RequestCalibration(calibration)
        self._draft: Draft = EMPTY
        self._drafter: Drafter = make()
        predicted = [[*prompt[-OPENING:], *sources.prediction]] if sources.prediction else []
        self._drafter.begin(prompt, [*_further(sources.references, prompt), *predicted])

    def read(self, tokens: Sequence[int]) -> None:
        """Learn how the text went on since the last draft."""
        if not tokens:
            return
        accepted = 0
        for guessed, token in zip(self._draft.tokens, tokens, strict=False):
            if guessed != token:
                break
            accepted += 1
        self._drafter.observe(self._draft, Accepted(tuple(range(accepted)), tuple(tokens)), None)
        self.calibration.observe(tokens)
        self.context.extend(tokens)
        self._draft = EMPTY

    def offer(self, rows: int) -> ScoredDraft:
        """A chain of at most so many rows, with the chance of each as this request has found it to be."""
        draft = likeliest_chain(self._drafter.propose(self.context, rows))
        return ScoredDraft(draft, self.calibration.chances(draft))

    def take(self, draft: Draft, rows: int) -> list[int]:
        """The first rows of a chain that was offered, which are verified now."""
        self._draft = draft if rows == len(draft) else chain(draft.tokens[:rows], draft.chances[:rows])
        return list(self._draft.tokens)


def _further(references: Sequence[Tokens], prompt: Tokens) -> list[Tokens]:
    """Those that do not stand in the prompt: a place that counts twice outweighs the answer's own."""
    within = Contained(prompt)
    return [each for each in references if len(each) < 2 * EDGE + LEAST or each[EDGE:-EDGE] not in within]
