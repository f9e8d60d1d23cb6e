"""Lookahead decoding: the model drafts for itself, from a window of guesses beside the text. Knows no other texts."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens, merge
from antiphon.accel.drafting.drafters.pool import Pool
from antiphon.accel.drafting.drafters.window import Window

GOES_ON = 0.6
"""How often a row of an n-gram is accepted where the one above it is."""


class Lookahead:
    """Drafts n-grams that the model itself made up in earlier forwards (Fu et al. 2024, arXiv 2402.02057).

    Beside every draft stands a window of ``window`` columns, whose rows are probes: each forward makes all columns one
    token longer, and a column of ``ngram`` tokens goes into a pool. When the text reaches the first token of pooled
    n-grams, the newest ``guesses`` of them are the draft. Nothing has to be trained, and no text is needed; with
    ``reads`` the n-grams of references, prompt and answer go into the pool, too.

    A row of the window is accepted like any other where it is right: it sees exactly the tokens above it, at their
    positions, so it is the row that a draft of the same tokens would have. The window always goes on with the model's
    best tokens, also where the text is sampled. Each request begins anew, with a window drawn by ``seed``.

    Raises:
        ValueError: a parameter is out of range.
    """

    def __init__(self, window: int = 7, ngram: int = 5, guesses: int = 7, *, reads: bool = True, seed: int = 0) -> None:
        if window < 1 or ngram < 2 or guesses < 0:
            raise ValueError(
                f"window is {window}, ngram {ngram} and guesses {guesses}; a window has 1 column or more, an n-gram 2 "
                "tokens or more, and 0 guesses or more are drafted."
            )
        self.width, self.ngram, self.guesses = window, ngram, guesses
        self.reads, self.seed = reads, seed
        self.begin((), ())

    @property
    def rows(self) -> int:
        """The most rows of a draft: W - 1 + W (N - 2) of the window, (N - 1) G of n-grams.

        A window narrower than its n-grams is larger before it has all of its levels, and that counts.
        """
        longest = self.width + self.ngram - 2
        window = max((level + 1) * (longest - level) for level in range(self.ngram - 1)) - 1
        return window + (self.ngram - 1) * self.guesses

    @property
    def columns(self) -> range:
        """The columns that the window has now; none before the first request."""
        return range(self.window.columns if self.window else 0)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Draw a new window from the prompt; its rows are to be in the first forward already."""
        self.pool = Pool(self.guesses)
        self.window = Window(self.width, self.ngram, prompt, Random(self.seed)) if prompt else None
        self._tail = tuple(prompt[-self.ngram :])
        if self.reads:
            for text in (*references, prompt):
                self.pool.read(text, self.ngram)
        return self.propose(prompt, self.rows)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """The pool's n-grams after the last token, ``budget`` rows of them at most, and the whole window as probes."""
        return self.share(context[-1], self.columns, slice(None), budget) if self.window else EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Move the window on, if its rows were verified."""
        self.advance(self.answers(draft, logits, self.columns), accepted.tokens)

    def share(self, root: int, columns: range, guesses: slice, budget: int) -> Draft:
        """A part of the draft: these columns of the window, and these of the n-grams, which stand newest first."""
        ngrams = self.pool.after(root)[::-1][guesses]
        window = self.window.draft(columns) if self.window else EMPTY
        return merge(_tree(ngrams, budget), window)

    def answers(self, draft: Draft, logits: Logits | None, columns: range) -> list[int]:
        """The model's best token after each of these columns; none where their rows were not verified.

        Rows are found by their paths, so it does not matter what else a draft has, or which row stands for equal ones.
        """
        if not self.window or logits is None:
            return []
        children = draft.children
        rows: list[int] = []
        for column in columns:
            row: int | None = ROOT
            for token in self.window.path(column):
                row = None if row is None else children.get(row, {}).get(token)
            if row is None:
                return []
            rows.append(row)
        return [logits.best(row) for row in rows]

    def advance(self, answers: Tokens, emitted: Tokens) -> None:
        """Put what the columns have become into the pool and move the window, by one token however many were emitted.

        After several emitted tokens the window stands a few positions behind the text; its next levels make up for it.
        """
        if self.window and answers:
            for ngram in self.window.ngrams(self._tail[-1], answers) if self.window.is_full else ():
                self.pool.add(ngram)
            self.window.move(answers)
        for token in emitted:
            self._tail = (*self._tail, token)[-self.ngram :]
            if self.reads and len(self._tail) == self.ngram:
                self.pool.add(self._tail)


def _tree(ngrams: Sequence[tuple[int, ...]], budget: int) -> Draft:
    """The first ``budget`` rows of the n-grams as one tree; all n-grams are taken to be equally likely."""
    rows: dict[tuple[int, ...], int] = {(): ROOT}
    counts: list[int] = []
    for ngram in ngrams:
        for end in range(1, len(ngram) + 1):
            row = rows.setdefault(ngram[:end], len(rows) - 1)
            counts += [0] * (row == len(counts))
            counts[row] += 1
    paths = list(rows)[1 : 1 + budget]
    return Draft.trusted(
        tuple(path[-1] for path in paths),
        tuple(rows[path[:-1]] for path in paths),
        tuple(counts[row] / len(ngrams) * GOES_ON ** len(path) for row, path in enumerate(paths)),
    )
