"""Where tokens occurred: sequences, and for every token the places right after it. Knows nothing of drafts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import nsmallest

from antiphon.accel.drafting.draft import Tokens

END = -1
"""Stands between sequences. It equals no token id (ids are 0 or more), so nothing matches across it."""


class Occurrences:
    """Sequences of token ids in one list, and for every token the places that follow it.

    A *place* is an index into ``tokens``: that of the token right after an occurrence, so every place has a
    continuation. The last sequence stays open for more until ``close``. Adding a token costs O(1). ``tokens`` begins
    with an ``END`` and always ends with one, so a text can be read on from any place until it ends.
    """

    __slots__ = ("_places", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = [END, END]
        self._places: defaultdict[int, list[int]] = defaultdict(list)

    def extend(self, tokens: Tokens) -> None:
        """Continue the open sequence."""
        self.tokens.pop()
        places, last = self._places, self.tokens[-1]
        for place, token in enumerate(tokens, len(self.tokens)):
            places[last].append(place)
            last = token
        self.tokens.extend(tokens)
        self.tokens.append(END)

    def close(self, *, is_place: bool = False) -> None:
        """End the open sequence; with ``is_place`` its end is a place too, one that nothing but ``END`` follows."""
        if is_place:
            self._places[self.tokens[-2]].append(len(self.tokens) - 1)
        self.tokens.append(END)

    def after(self, tail: Tokens, longest: int, newest: int | None = None) -> list[list[int]]:
        """The places after the last 1, 2, ... tokens of ``tail``, oldest first: entry ``m - 1`` is for ``m`` tokens.

        The list ends with the longest match, of at most ``longest`` tokens, and is empty where there is none.
        With ``newest``, only so many of the last token's places are looked at: it bounds the work.
        """
        found = self._places.get(tail[-1], []) if tail else []
        found = found[-newest:] if newest else found
        matches: list[list[int]] = []
        tokens = self.tokens
        for back in range(2, min(longest, len(tail)) + 2):
            if not found:
                break
            matches.append(found)
            if back <= len(tail):
                token = tail[-back]
                found = [place for place in found if tokens[place - back] == token]
        return matches

    def continuations(self, places: Iterable[int], ahead: int) -> dict[int, list[int]]:
        """The places by the token that stands ``ahead`` of them, in order of appearance; ended ones are left out.

        Pass only places that the previous ``ahead`` returned: one that has ended would read into the next sequence.
        """
        groups: dict[int, list[int]] = {}
        tokens = self.tokens
        for place in places:
            token = tokens[place + ahead]
            if token in groups:
                groups[token].append(place)
            else:
                groups[token] = [place]
        groups.pop(END, None)
        return groups

    def most_versatile(self, most: int) -> list[tuple[int, float]]:
        """The tokens that followed the most different tokens, and their shares among each other.

        Kneser and Ney (1995): where no context is known, this tells more of what comes next than plain frequency.
        Only the ``4 * most`` most frequent tokens are considered.
        """
        tokens = self.tokens
        frequent = nsmallest(
            4 * most, ((-len(places), token) for token, places in self._places.items() if token != END)
        )
        befores = [(-len({tokens[place - 2] for place in self._places[token]}), token) for _, token in frequent]
        versatile = nsmallest(most, befores)
        total = sum(count for count, _ in versatile)
        return [(token, count / total) for count, token in versatile]
