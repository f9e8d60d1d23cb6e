"""Where a text is cut: exactly before its first stop string, while it is still being written."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.text.detokenize import UNFINISHED


class StopStrings:
    """Cuts a text exactly before the first stop string, and holds back what may be the beginning of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.is_found = False

    def push(self, piece: str, pending: str = "") -> str:
        """The part of the text up to and with ``piece`` that no stop string can reach any more.

        ``pending`` is text that is there and may still change at its end. A stop string that is whole in it counts;
        ``is_found`` then says so, and what is returned is the last of the text.
        """
        text = self._held + piece
        seen = text + pending.rstrip(UNFINISHED)
        cuts = [at for at in (seen.find(string) for string in self._strings) if at >= 0]
        if cuts:
            self.is_found = True
            self._held = ""
            return seen[: min(cuts)]
        end = len(text) - self._longest_beginning(text)
        self._held = text[end:]
        return text[:end]

    def finish(self, pending: str) -> str:
        """The rest of a text that ends here, ``pending`` included, cut like any other."""
        rest = self.push(pending)
        return rest + self._held

    def _longest_beginning(self, text: str) -> int:
        """How many characters at the end of ``text`` are the beginning of a stop string."""
        longest = max((len(string) for string in self._strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(string.startswith(text[-length:]) for string in self._strings):
                return length
        return 0
