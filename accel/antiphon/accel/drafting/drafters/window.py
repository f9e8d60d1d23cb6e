"""Lookahead decoding's window: columns of guesses that grow by a level with every forward. Knows no pool, no model."""

from __future__ import annotations

from random import Random

from antiphon.accel.drafting.draft import ROOT, Draft, Tokens

WORTH = 0.3
"""What the logits after a whole window are worth, in tokens: they added 0.2 to 0.5 tokens to a step of SmolLM2."""


def window_rows(width: int, size: int) -> int:
    """The rows of a window that has all its levels, less the root: W (N - 1) - 1."""
    return width * (size - 1) - 1


class Window:
    """``width`` columns of tokens, the first one below the root, up to ``size`` - 1 levels deep.

    Level 0 runs along the text: its tokens stand 1, 2, ... places after the root, each seeing those before it. A column
    begins in one of them, the first column in the root, and goes down level by level; a token sees those of its
    column above it and what these see. So the window is a tree of rows: row (0, i) follows (0, i - 1), and row (l, j)
    follows (l - 1, j), where (0, j - 1) begins column j and the root column 0.

    What the model says after the deepest token of a column is its next token: one Jacobi iteration for each level at
    once (Fu et al. 2024, arXiv 2402.02057, section 3.1). At first there is level 0 alone, and each forward adds a level
    until there are all; from then on the oldest goes. Either way the window moves on by one token.
    """

    def __init__(self, width: int, size: int, prompt: Tokens, random: Random) -> None:
        """Level 0 begins with tokens drawn from the prompt: ``size`` - 2 more than it will have in the end."""
        self.size = size
        self.levels = [random.choices(prompt, k=width + size - 3)]

    @property
    def columns(self) -> int:
        """How many columns there are now; while levels are added it is more than the width."""
        return len(self.levels[0]) + 1

    @property
    def is_full(self) -> bool:
        """Whether a column and its next token are an n-gram."""
        return len(self.levels) == self.size - 1

    def draft(self, columns: range) -> Draft:
        """These columns as probes, with as much of level 0 as they see."""
        above = self.levels[0][: columns[-1]] if columns else []
        tokens, parents, tips = list(above), list(range(ROOT, len(above) - 1)), [ROOT, *range(len(above))]
        for level in self.levels[1:]:
            for column in columns:
                parents.append(tips[column])
                tips[column] = len(tokens)
                tokens.append(level[column])
        worth = WORTH / max(len(tokens), 1)
        return Draft.trusted(tuple(tokens), tuple(parents), (worth,) * len(tokens), probes=len(tokens))

    def path(self, column: int) -> list[int]:
        """The tokens from the root down to the deepest one of a column."""
        return [*self.levels[0][:column], *(level[column] for level in self.levels[1:])]

    def ngrams(self, root: int, said: Tokens) -> list[tuple[int, ...]]:
        """Every column of a full window with what the model ``said`` after it."""
        heads = [root, *self.levels[0]]
        return [
            (head, *(level[column] for level in self.levels[1:]), token)
            for column, (head, token) in enumerate(zip(heads, said, strict=True))
        ]

    def move(self, said: Tokens) -> None:
        """One token on, with what the model ``said`` after each column as the newest level."""
        if self.is_full:
            self.levels = [*self.levels[1:], list(said)]
            self.levels[0] = self.levels[0][1:]
        else:
            self.levels = [level[1:] for level in (*self.levels, list(said))]
