"""Substring search over tokens: whether one sequence occurs in another."""

from __future__ import annotations

from array import array

from antiphon.accel.drafting.draft import Tokens


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
