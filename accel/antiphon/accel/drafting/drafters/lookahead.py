"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): draft n-grams that the model generated in a window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens, merge

NGRAM_CHANCE = 0.6
"""Probability that a row of an n-gram is accepted if its parent is."""

WINDOW_WORTH = 0.3
"""Value of the logits of a whole window, in expected tokens; measured gain: 0.2 to 0.5 tokens per step of SmolLM2."""


class NGramPool:
    """N-grams by their first token, at most ``capacity`` per token: the n-gram pool of the paper (section 3.2).

    An n-gram that is added again becomes the newest n-gram of its first token. Lookups do not
    change the order.

    Args:
        capacity: Maximum number of n-grams per first token.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._followers: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngram: Tokens) -> None:
        """Add an n-gram as the newest of its first token; above the capacity, drop the oldest."""
        first, *rest = ngram
        followers = self._followers.setdefault(first, {})
        followers.pop(tuple(rest), None)
        followers[tuple(rest)] = None
        if len(followers) > self.capacity:
            del followers[next(iter(followers))]

    def add_all(self, text: Tokens, size: int) -> None:
        """Add every n-gram of ``size`` tokens in a text, from its beginning to its end."""
        for start in range(len(text) - size + 1):
            self.add(text[start : start + size])

    def lookup(self, token: int) -> list[tuple[int, ...]]:
        """Return the n-grams that begin with a token, oldest first; the token itself is omitted."""
        return list(self._followers.get(token, ()))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Return all n-grams, grouped by first token, oldest first."""
        return ((first, *rest) for first, followers in self._followers.items() for rest in followers)


class Window:
    """The lookahead window: ``width`` columns of guesses with ``size`` - 1 levels.

    The tokens of level 0 are guesses at the next 1, 2, ... positions of the text, and each guess
    attends to the guesses before it. Column j starts below the j-th token of level 0 (column 0
    below the root). A token attends to the tokens above it in its column and to their ancestors. So
    the window is a tree of rows: row (0, i) follows (0, i - 1), row (1, j) follows (0, j - 1), and
    any deeper row (l, j) follows (l - 1, j). Rows (0, 0) and (1, 0) follow the root.

    The model's prediction after the deepest token of a column becomes the next token of the column: one Jacobi
    iteration for all levels at once (section 3.1). At first only level 0 exists, and each forward pass adds a level.
    When all levels exist, each forward pass also drops the oldest level. In both cases the window advances by one
    token.

    Args:
        width: Number of columns of the full window (the paper's W).
        size: Tokens of an n-gram (the paper's N).
        prompt: Tokens from which level 0 is drawn. At first, level 0 has ``size`` - 2 more tokens
            than in a full window.
    """

    def __init__(self, width: int, size: int, prompt: Tokens, random: Random) -> None:
        self.size = size
        self.levels = [random.choices(prompt, k=width + size - 3)]

    @property
    def columns(self) -> int:
        """Current number of columns; more than ``width`` until all levels exist."""
        return len(self.levels[0]) + 1

    @property
    def is_full(self) -> bool:
        """Whether all levels exist, so that a column and its next token are an n-gram."""
        return len(self.levels) == self.size - 1

    def draft(self, columns: range) -> Draft:
        """Return the given columns as probes, with the part of level 0 to which they attend."""
        above = self.levels[0][: columns[-1]] if columns else []
        tokens, parents, tips = list(above), list(range(ROOT, len(above) - 1)), [ROOT, *range(len(above))]
        for level in self.levels[1:]:
            for column in columns:
                parents.append(tips[column])
                tips[column] = len(tokens)
                tokens.append(level[column])
        worth = WINDOW_WORTH / max(len(tokens), 1)
        return Draft.unchecked(tuple(tokens), tuple(parents), (worth,) * len(tokens), num_probes=len(tokens))

    def path(self, column: int) -> list[int]:
        """Return the tokens on the path from the root to a column's last token."""
        return [*self.levels[0][:column], *(level[column] for level in self.levels[1:])]

    def ngrams(self, root: int, answers: Tokens) -> list[tuple[int, ...]]:
        """Return the n-gram of every column of a full window."""
        heads = [root, *self.levels[0]]
        return [
            (head, *(level[column] for level in self.levels[1:]), token)
            for column, (head, token) in enumerate(zip(heads, answers, strict=True))
        ]

    def advance(self, answers: Tokens) -> None:
        """Advance by one token: the predictions after the columns become the newest level."""
        if self.is_full:
            self.levels = [*self.levels[1:], list(answers)]
            self.levels[0] = self.levels[0][1:]
        else:
            self.levels = [level[1:] for level in (*self.levels, list(answers))]


def window_rows(width: int, size: int) -> int:
    """Return the number of rows of a window with all its levels, without the root: W (N - 1) - 1."""
    return width * (size - 1) - 1


class Lookahead:
    """A `Drafter` that drafts n-grams which the model generated in earlier forward passes.

    Every draft contains a `Window`, whose rows are probes. Each forward pass extends all columns by one token. A
    column that has reached ``ngram`` tokens is added to an `NGramPool`. If the last token of the text is the first
    token of pooled n-grams, the newest of these are drafted. No training and no references are needed.

    A row of the window can be accepted like any other row, because it attends to exactly the tokens
    and positions that plain decoding would use. The window always continues with the model's most
    likely tokens, even if the text is sampled.

    Args:
        window: Number of columns of the window (the paper's W).
        ngram: Tokens of an n-gram (the paper's N).
        guesses: Maximum number of pooled n-grams with the same first token, and of n-grams in a draft (the paper's G).
        prompt_as_reference: Whether the n-grams of references, prompt and answer are added to the pool, too.

    Raises:
        ValueError: A parameter is out of range.
    """

    def __init__(
        self, window: int = 7, ngram: int = 5, guesses: int = 7, *, prompt_as_reference: bool = True, seed: int = 0
    ) -> None:
        if window < 1 or ngram < 2 or guesses < 0:
            raise ValueError(
                f"window is {window}, ngram is {ngram} and guesses is {guesses}; give a window of at least 1 column, "
                "n-grams of at least 2 tokens, and at least 0 guesses."
            )
        self.width, self.ngram, self.guesses = window, ngram, guesses
        self.prompt_as_reference, self.seed = prompt_as_reference, seed
        self.begin((), ())

    @property
    def max_rows(self) -> int:
        """Largest number of rows of a draft: W - 1 + W (N - 2) rows of the window, and (N - 1) G of n-grams.

        If W < N - 2, the window has more rows before all of its levels exist; the result includes this case.
        """
        longest = self.width + self.ngram - 2
        window = max((level + 1) * (longest - level) for level in range(self.ngram - 1)) - 1
        return window + (self.ngram - 1) * self.guesses

    @property
    def columns(self) -> range:
        """Current columns of the window; none before the first request."""
        return range(self.window.columns if self.window else 0)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Draw a new window from the prompt and return it for the first forward pass."""
        self.pool = NGramPool(self.guesses)
        self.window = Window(self.width, self.ngram, prompt, Random(self.seed)) if prompt else None
        self._tail = tuple(prompt[-self.ngram :])
        if self.prompt_as_reference:
            for text in (*references, prompt):
                self.pool.add_all(text, self.ngram)
        return self.propose(prompt, self.max_rows)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return at most ``budget`` rows of pooled n-grams after the last token, and the whole window as probes."""
        return self.share(context[-1], self.columns, slice(None), budget) if self.window else EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Advance the window if its rows were verified."""
        self.advance(self.answers(draft, logits, self.columns), accepted.tokens)

    def share(self, root: int, columns: range, guesses: slice, budget: int) -> Draft:
        """Return one device's part of the draft, if several devices share the verification.

        Args:
            guesses: Slice of the pooled n-grams after ``root``, newest first.
            budget: Maximum number of rows of n-grams.
        """
        ngrams = self.pool.lookup(root)[::-1][guesses]
        window = self.window.draft(columns) if self.window else EMPTY
        return merge(_ngram_tree(ngrams, budget), window)

    def answers(self, draft: Draft, logits: Logits | None, columns: range) -> list[int]:
        """Return the model's most likely token after each column; empty if the window was not verified.

        Rows are found by their paths, so that other rows and merged duplicates do not matter.

        Args:
            logits: Logits of the draft, or None.
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
        return [logits.argmax(row) for row in rows]

    def advance(self, answers: Tokens, emitted: Tokens) -> None:
        """Add the n-grams of the columns to the pool, and advance the window by one token.

        If several tokens were emitted, the window is then a few positions behind the text until its
        next levels are computed.

        Args:
            answers: The model's most likely token after each column; empty if the window was not verified.
        """
        if self.window and answers:
            for ngram in self.window.ngrams(self._tail[-1], answers) if self.window.is_full else ():
                self.pool.add(ngram)
            self.window.advance(answers)
        for token in emitted:
            self._tail = (*self._tail, token)[-self.ngram :]
            if self.prompt_as_reference and len(self._tail) == self.ngram:
                self.pool.add(self._tail)


def _ngram_tree(ngrams: Sequence[tuple[int, ...]], budget: int) -> Draft:
    """Return the first ``budget`` rows of the n-grams as one tree; all n-grams are considered equally likely."""
    rows: dict[tuple[int, ...], int] = {(): ROOT}
    counts: list[int] = []
    for ngram in ngrams:
        for end in range(1, len(ngram) + 1):
            row = rows.setdefault(ngram[:end], len(rows) - 1)
            counts += [0] * (row == len(counts))
            counts[row] += 1
    paths = list(rows)[1 : 1 + budget]
    return Draft.unchecked(
        tuple(path[-1] for path in paths),
        tuple(rows[path[:-1]] for path in paths),
        tuple(counts[row] / len(ngrams) * NGRAM_CHANCE ** len(path) for row, path in enumerate(paths)),
    )
