"""An index of token sequences (references, prompt, answer): for every token, the positions right after it."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from heapq import nsmallest

from antiphon.accel.drafting.draft import Tokens

END = -1
"""Separator between sequences. It equals no token id (ids are 0 or more), so nothing matches across it."""


class TokenIndex:
    """Token sequences in one list, with the positions after each occurrence of every token.

    A position is the index in ``tokens`` of the token right after an occurrence. The last sequence can be extended
    until it is closed. Adding a token costs O(1). ``tokens`` begins and ends with ``END``, so that reading from any
    position stops at the end of its text.

    Attributes:
        tokens: All sequences, each followed by ``END``.
    """

    __slots__ = ("_positions", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = [END, END]
        self._positions: defaultdict[int, list[int]] = defaultdict(list)

    def extend(self, tokens: Tokens) -> None:
        """Append tokens to the last sequence."""
        self.tokens.pop()
        positions, last = self._positions, self.tokens[-1]
        for position, token in enumerate(tokens, len(self.tokens)):
            positions[last].append(position)
            last = token
        self.tokens.extend(tokens)
        self.tokens.append(END)

    def close(self) -> None:
        """End the last sequence."""
        self.tokens.append(END)

    def find_matches(self, tail: Tokens, longest: int, newest: int | None = None) -> list[list[int]]:
        """Return the positions after earlier occurrences of the last token, of the last two tokens, and so on.

        Args:
            tail: The text, or its last tokens.
            newest: Number of newest occurrences of the last token to consider; None: all.

        Returns:
            Entry m - 1 has the positions after matches of m tokens, oldest first. The list ends with the longest
            match; it is empty if the last token does not occur.
        """
        found = self._positions.get(tail[-1], []) if tail else []
        found = found[-newest:] if newest else found
        matches: list[list[int]] = []
        tokens = self.tokens
        for back in range(2, min(longest, len(tail)) + 2):
            if not found:
                break
            matches.append(found)
            if back <= len(tail):
                token = tail[-back]
                found = [position for position in found if tokens[position - back] == token]
        return matches

    def continuations(self, positions: Iterable[int], ahead: int) -> dict[int, list[int]]:
        """Group positions by the token at distance ``ahead``; omit positions whose text has ended.

        Args:
            positions: Positions that the call with ``ahead - 1`` returned; from other positions,
                ``ahead`` tokens could reach into the next sequence.
            ahead: Distance in tokens; 0 is the token at the position itself.

        Returns:
            Positions by token, in order of appearance.
        """
        groups: dict[int, list[int]] = {}
        tokens = self.tokens
        for position in positions:
            token = tokens[position + ahead]
            if token in groups:
                groups[token].append(position)
            else:
                groups[token] = [position]
        groups.pop(END, None)
        return groups

    def kneser_ney_unigrams(self, count: int) -> list[tuple[int, float]]:
        """Return the tokens that follow the most different tokens, with probabilities that sum to 1.

        This is the lower-order distribution of Kneser and Ney (1995): if no context is known, it predicts the next
        token better than plain frequency. Only the ``4 * count`` most frequent tokens are considered.
        """
        tokens = self.tokens
        frequent = nsmallest(
            4 * count, ((-len(positions), token) for token, positions in self._positions.items() if token != END)
        )
        predecessors = [
            (-len({tokens[position - 2] for position in self._positions[token]}), token) for _, token in frequent
        ]
        best = nsmallest(count, predecessors)
        total = sum(distinct for distinct, _ in best)
        return [(token, distinct / total) for distinct, token in best]


class Contained:
    """Tests whether tokens occur contiguously in a text: ``tokens in Contained(text)``."""

    def __init__(self, text: Tokens) -> None:
        self._text = array("q", text).tobytes()

    def __contains__(self, tokens: Tokens) -> bool:
        wanted, size = array("q", tokens), array("q").itemsize
        place = self._text.find(wanted.tobytes())
        while place % size and place >= 0:  # a match that starts inside of a token does not count
            place = self._text.find(wanted.tobytes(), place + 1)
        return place >= 0
