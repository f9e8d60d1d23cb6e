"""Whether one sequence of tokens stands in another. Knows nothing of drafts."""

from __future__ import annotations

from array import array

from antiphon.accel.drafting.draft import Tokens


class Contained:
    """The runs of tokens that stand in a text: ``tokens in Contained(text)``."""

    def __init__(self, text: Tokens) -> None:
        self._text = array("q", text).tobytes()

    def __contains__(self, tokens: Tokens) -> bool:
        wanted, size = array("q", tokens), array("q").itemsize
        place = self._text.find(wanted.tobytes())
        while place % size and place >= 0:  # bytes that lie across two tokens
            place = self._text.find(wanted.tobytes(), place + 1)
        return place >= 0
