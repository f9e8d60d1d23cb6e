"""A trained draft head (MTP, EAGLE-3) guesses the next tokens from the model's hidden states.

This module decides when the head runs, and makes drafts of the head's guesses. The engines
implement `DraftHead`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import isfinite
from operator import mul
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens, trim
from antiphon.accel.drafting.drafters.head_tree import HeadTree

MAX_DEPTH, WIDTH = 8, 4
"""Maximum number of passes of the head in a step, and number of guesses at each token."""

MIN_GAIN = 0.02
"""Minimum expected gain of a pass, in tokens; below it no pass is run, however short it is."""

INITIAL_ACCEPTANCE = 0.6
"""Assumed acceptance rate of the head's best guess."""

EXPLORE_EVERY = 32
"""After this number of steps without the head, it runs once to measure its acceptance rate."""

MEMORY, MEMORY_SECONDS = 200.0, 32.0
"""Acceptance rates are averages over about ``MEMORY`` guesses.

Durations are averages over about ``MEMORY_SECONDS`` passes or steps.
"""

MAX_TIMED_TOKENS = 8
"""Passes over more tokens, for example over a prompt, do not count in the mean time of a pass."""


class HiddenStates(NamedTuple):
    """Hidden states of consecutive tokens.

    Attributes:
        start: Position of the first token.
        layers: For each layer that the head reads, an array or tensor of shape (tokens, hidden).
    """

    start: int
    layers: tuple[Any, ...]


Guesses = Sequence[tuple[int, float]]
"""The most likely tokens of one pass and their probabilities, best first."""


class HeadSession(Protocol):
    """The state of a head for one text, such as the KV cache of its layer."""

    def read(self, states: Sequence[HiddenStates], tokens: Tokens, width: int) -> Guesses:
        """Read the confirmed tokens since the last call, and forget guessed tokens.

        Args:
            states: Hidden states of consecutive tokens, in one or several parts.
            tokens: For each hidden state, the token after it. The last of these tokens is the last
                confirmed token.
            width: Number of guesses.

        Returns:
            The guesses at the token after the last confirmed token.
        """

    def guess(self, token: int, width: int) -> Guesses:
        """Return the guesses at the token after ``token``, which was guessed by the last call of this session."""


class DraftHead(Protocol):
    """A trained head of one model.

    Attributes:
        name: Kind of the head, for messages.
        layers: Indices of the model's hidden states that the head reads, as in ``hidden_states`` of transformers.
        stats: Measured times and acceptance rates, which all requests share.
        max_depth: Maximum number of consecutive guesses in a step.
        is_parallel: Whether ``read`` computes the guesses at all depths, so that ``guess`` needs no pass.
        reads_cache: Whether the head attends to the model's keys and values.
        num_bytes: Size of the head's weights in bytes, without weights that the head shares with
            the model.
    """

    name: str
    layers: tuple[int, ...]
    stats: HeadStats
    max_depth: int = MAX_DEPTH
    is_parallel: bool = False
    reads_cache: bool = False
    num_bytes: int = 0

    def session(self, cache: Callable[[], Any]) -> HeadSession:
        """Return the session of a new text.

        Args:
            cache: Function that returns the model's KV cache of the text. This cache holds the
                tokens whose hidden states are known.
        """


class HeadStats:
    """Measured times and acceptance rates of a head. They decide whether another pass of the head is run.

    Args:
        is_timed: Whether passes and steps are timed. False: they are not timed, and a pass counts as free.

    Attributes:
        calibration: Acceptance rates of the head's guesses by their probabilities.
        others: Acceptance rates of rows that other drafters propose, by their probabilities.
        pass_seconds: Mean duration of a pass over a few tokens.
        step_seconds: Mean duration of a decoding step, with drafting.
        step_tokens: Mean number of tokens that a step emits.
        skipped_steps: Number of steps since the head last ran.
    """

    def __init__(self, *, is_timed: bool = True) -> None:
        self.is_timed = is_timed
        self.calibration, self.others = Calibration(), Calibration()
        self.pass_seconds = self.step_seconds = self.step_tokens = 0.0
        self.skipped_steps = 0
        self._depths = Calibration(MEMORY)  # one bin for each depth

    def acceptance(self, depth: int) -> float:
        """Return how often the best guess at a depth (from 0) is right if all guesses above it are right.

        Depths from `MAX_DEPTH` - 1 on share one rate.
        """
        return self._depths.chance(min(depth, MAX_DEPTH - 1), INITIAL_ACCEPTANCE)

    def pays(self, gains: Sequence[float]) -> bool:
        """Return whether the next passes of the head, or some of them, bring more tokens than their time is worth.

        The time is worth the tokens that would otherwise be emitted: seconds of a pass times tokens
        per second.

        Args:
            gains: For each pass, the number of tokens by which it is expected to increase the tokens of the step.
        """
        rate = self.step_tokens / self.step_seconds if self.step_seconds else 0.0
        cost = max(MIN_GAIN, self.pass_seconds * rate)
        return any(gain > cost * passes for passes, gain in enumerate(accumulate(gains), 1))

    def observe_guess(self, depth: int, is_hit: bool) -> None:
        """Count the best guess at a depth."""
        self._depths.record(min(depth, MAX_DEPTH - 1), is_hit)

    def observe_pass(self, seconds: float) -> None:
        """Learn the duration of a pass over a few tokens."""
        if self.is_timed:
            self.pass_seconds += (seconds - self.pass_seconds) / (MEMORY_SECONDS if self.pass_seconds else 1)

    def observe_step(self, tokens: int, seconds: float) -> None:
        """Learn the duration and the emitted tokens of a step."""
        if self.is_timed:
            share = 1 / MEMORY_SECONDS if self.step_seconds else 1
            self.step_seconds += (seconds - self.step_seconds) * share
            self.step_tokens += (tokens - self.step_tokens) * share


class Head:
    """A `Drafter` that drafts a trained head's guesses: a chain of the best guesses, and their alternatives.

    Each pass of the head guesses one more token of the chain. Passes are run while the expected
    gain exceeds the measured cost. The gain is a product: the chance that the chain is right so
    far, times the head's acceptance rate, times the chance that no other drafter has the right
    token. So the head does not run while long passages are copied. Its next pass then reads all
    tokens that it has not read yet.

    Args:
        head: The head of the model that decodes.

    Attributes:
        text: Prompt and confirmed tokens.
    """

    def __init__(self, head: DraftHead) -> None:
        self.model = head
        self._take_states: Callable[[], Sequence[HiddenStates]] = list
        self._cache: Callable[[], Any] = lambda: None
        self._run: Callable[[Callable[[], Draft]], Draft] = lambda function: function()
        self.begin((), ())

    def connect(
        self,
        take_states: Callable[[], Sequence[HiddenStates]],
        run: Callable[[Any], Any],
        cache: Callable[[], Any] = lambda: None,
    ) -> None:
        """Connect the head with the sequence of its request. Called before `begin`.

        Args:
            take_states: Returns the hidden states of the tokens that were kept since its last call.
            run: Calls a function while no other thread uses the engine.
            cache: Returns the model's cache, as for `DraftHead.session`.
        """
        self._take_states, self._run, self._cache = take_states, run, cache

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Forget the previous request."""
        self.text = list(prompt)
        self._session = self.model.session(self._cache)
        self._unread: list[HiddenStates] = []
        self._end = 0  # position after the last known hidden state
        self._best: list[int] = []
        self._started = 0.0
        stats = self.model.stats
        self._calibration, self._others = RequestCalibration(stats.calibration), RequestCalibration(stats.others)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return the head's guesses alone."""
        return trim(self.extend(EMPTY, budget), budget, sys.maxsize)

    def extend(self, tree: Draft, budget: int) -> Draft:
        """Return other drafters' draft merged with the head's guesses; chances are calibrated.

        Args:
            tree: The draft of the other drafters, without probes.
            budget: Maximum number of rows; if it is 0, the head does not run.
        """
        self._started = perf_counter()
        if len(tree):
            tree = Draft.unchecked(tree.tokens, tree.parents, tuple(self._others.calibrate(tree)))
        return self._run(lambda: self._extend(tree, min(budget, self.model.max_depth)))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Learn which guesses were right, and how long the step took."""
        stats, tokens = self.model.stats, accepted.tokens
        self.text += tokens
        for depth, (guess, token) in enumerate(zip(self._best, tokens, strict=False)):
            stats.observe_guess(depth, guess == token)
            if guess != token:
                break
        self._best = []
        self._calibration.observe(tokens)
        self._others.observe(tokens)
        if self._started:
            stats.observe_step(len(tokens), perf_counter() - self._started)

    def _collect(self) -> None:
        """Take the hidden states of the tokens that were kept since the last call.

        After an eviction, the engine computes known hidden states again; they are skipped. The
        engine computes none for a cached prefix; the head then knows only later tokens.
        """
        for start, layers in self._take_states():
            known = self._end - start
            if known < 0:
                self._session, self._unread, known = self.model.session(self._cache), [], 0
            if len(layers[0]) > known:
                self._unread.append(HiddenStates(start + known, tuple(each[known:] for each in layers)))
                self._end = start + len(layers[0])

    def _extend(self, tree: Draft, depth: int) -> Draft:
        """Run passes of the head while they are worth their time; return the tree with each pass's guesses."""
        self._collect()
        stats, combined = self.model.stats, HeadTree(tree)
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []  # of the guesses alone, as the head gives them
        row, above, last, given_above = ROOT, 1.0, ROOT, 1.0  # the end of the chain: in the tree, and among the guesses
        self._best = []
        stats.skipped_steps += 1
        for level in range(depth if self._unread else 0):
            is_due = level == 0 and stats.skipped_steps > EXPLORE_EVERY
            if not is_due and not self._is_worth(level, above, combined.coverage(row, depth - level)):
                break
            stats.skipped_steps = 0
            found = [(token, min(given, 1.0)) for token, given in self._pass(level) if isfinite(given) and given > 0]
            if not found:  # the head computes NaN
                stats.observe_guess(level, is_hit=False)
                break
            self._best.append(found[0][0])
            calibrated = [(token, self._calibration.chance(row == ROOT, given)[1]) for token, given in found]
            row, given = combined.add(row, calibrated)
            above *= given
            first = len(tokens)
            tokens += [token for token, _ in found]
            parents += [last] * len(found)
            chances += [given_above * given for _, given in found]
            last, given_above = first, chances[first]
        self._calibration.calibrate(Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances)))  # for `observe`
        return combined.draft() if tokens else tree

    def _is_worth(self, level: int, above: float, coverage: Sequence[float]) -> bool:
        """Return whether further passes are expected to bring more tokens than their time is worth.

        A pass is also run if only the passes after it bring enough, because the head's guesses may
        first repeat other drafters' tokens, and go on where these end.

        Args:
            level: Depth of the next pass, from 0.
            above: Chance that the chain is right so far.
            coverage: For each further depth, the chance that other drafters have the right token.
        """
        stats = self.model.stats
        reach = accumulate((stats.acceptance(level + more) for more in range(len(coverage))), mul, initial=above)
        next(reach)
        gains = [chance * (1 - covered) for chance, covered in zip(reach, coverage, strict=True)]
        if not self.model.is_parallel:
            return stats.pays(gains)
        return gains[0] > MIN_GAIN if level else stats.pays([sum(gains)])  # one pass brings the guesses at all depths

    def _pass(self, level: int) -> Guesses:
        """Run one pass of the head, over the unread tokens or over its last guess, and time it."""
        started, count = perf_counter(), 1
        if level == 0:
            first, count = self._unread[0].start, self._end - self._unread[0].start
            states, self._unread = self._unread, []
            found = self._session.read(states, self.text[first + 1 : first + 1 + count], WIDTH)
        else:
            found = self._session.guess(self._best[-1], WIDTH)
        if count <= MAX_TIMED_TOKENS and not (level and self.model.is_parallel):
            self.model.stats.observe_pass(perf_counter() - started)
        return found
