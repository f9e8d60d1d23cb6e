"""How likely a model finds each of several texts as its answer: a draft of all of them, whose logits are what counts.

Verification is what reads them: the texts are one tree, so they cost one forward beside the prompt, and those that
begin alike share rows. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens


class Weigher:
    """A `Drafter` that drafts these texts (token ids) once, in the first forward, and notes how likely each is.

    ``log_probabilities`` has one entry for each text, in nats: of all its tokens as the answer's first ones. It is None
    until the first step is done, and stays so where not all rows of the draft could be verified with it.
    """

    def __init__(self, texts: Sequence[Tokens]) -> None:
        self._texts = [tuple(text) for text in texts]
        self._draft = _tree(self._texts)
        self._is_over = False
        self.log_probabilities: list[float] | None = None

    @property
    def rows(self) -> int:
        """How many rows the draft has."""
        return len(self._draft.tokens)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """All texts as one tree, without the last token of each: after it nothing has to be known."""
        return self._draft

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Nothing: the texts hang from the prompt's last token alone."""
        return EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Note log p(text) = sum of log p(token | prompt, tokens before it), for each text."""
        if self._is_over or logits is None:
            return
        self._is_over = True
        places = [_rows(text, draft) for text in self._texts]
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


def _rows(text: Tokens, draft: Draft) -> list[int] | None:
    """Where the logits say each of the tokens of a text, the root first; None where rows of it are missing."""
    rows = [ROOT]
    for token in text[:-1]:
        below = draft.children.get(rows[-1], {})
        if token not in below:
            return None
        rows.append(below[token])
    return [row + 1 for row in rows]
