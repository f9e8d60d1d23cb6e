"""Scores given continuations: the log-probability of several texts as the beginning of a model's answer.

The texts are one draft tree, so they cost one forward pass together, and texts with a common beginning share rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens


class ContinuationScorer:
    """A `Drafter` that drafts the given texts once, in the first forward pass, and records their log-probabilities.

    Args:
        texts: Token ids of each text.

    Attributes:
        log_probabilities: Sum of log p(token | prompt, tokens before it) of each text, in nats. None before the first
            step, and if that step did not verify all rows of the draft.
    """

    def __init__(self, texts: Sequence[Tokens]) -> None:
        self._texts = [tuple(text) for text in texts]
        self._draft = _tree(self._texts)
        self._is_done = False
        self.log_probabilities: list[float] | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows of the draft."""
        return len(self._draft.tokens)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Return all texts as one tree, each without its last token, whose logits are not needed."""
        return self._draft

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return an empty draft: the texts follow the prompt only."""
        return EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Record log p(text) = sum of log p(token | prompt, tokens before it) for each text."""
        if self._is_done or logits is None:
            return
        self._is_done = True
        places = [_logit_rows(text, draft) for text in self._texts]
        found = [rows for rows in places if rows is not None]
        if len(found) < len(places):
            return
        scores = logits.tensor().float()
        totals = scores.logsumexp(-1)
        self.log_probabilities = [
            float((scores[rows, list(text)] - totals[rows]).sum())
            for rows, text in zip(found, self._texts, strict=True)
        ]


def _tree(texts: Sequence[Tokens]) -> Draft:
    tokens: list[int] = []
    parents: list[int] = []
    rows: dict[tuple[int, int], int] = {}
    for text in texts:
        parent = ROOT
        for token in text[:-1]:
            if (parent, token) not in rows:
                rows[parent, token] = len(tokens)
                tokens.append(token)
                parents.append(parent)
            parent = rows[parent, token]
    return Draft(tuple(tokens), tuple(parents), (1.0,) * len(tokens))


def _logit_rows(text: Tokens, draft: Draft) -> list[int] | None:
    """Return for each token of a text its row of the logits tensor (0: the root); None if a row is missing."""
    rows = [ROOT]
    for token in text[:-1]:
        below = draft.children.get(rows[-1], {})
        if token not in below:
            return None
        rows.append(below[token])
    return [row + 1 for row in rows]
