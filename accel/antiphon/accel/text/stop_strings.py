"""Cut a growing text exactly before the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.text.detokenize import UNFINISHED


def partial_length(text: str, strings: Sequence[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of one of the strings."""
    longest = max(map(len, strings), default=1) - 1
    lengths = range(min(longest, len(text)), 0, -1)
    return next((size for size in lengths if any(string.startswith(text[-size:]) for string in strings)), 0)


class StopStrings:
    """Cuts a growing text before the first stop string, and holds back text that may be the beginning of one.

    Args:
        strings: Stop strings of at least one character each.

    Attributes:
        is_found: Whether a stop string was found. The text is then complete.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.is_found = False

    def push(self, piece: str, pending: str = "") -> str:
        """Add a piece; return the new text in which no stop string can begin, so that it can be streamed.

        Args:
            pending: Text after the piece that the detokenizer may still change. A complete stop
                string in ``pending`` ends the text.

        Returns:
            The new text. If ``is_found`` is then true, no more text follows.
        """
        text = self._held + piece
        visible = text + pending.rstrip(UNFINISHED)
        cuts = [at for at in (visible.find(string) for string in self._strings) if at >= 0]
        if cuts:
            self.is_found = True
            self._held = ""
            return visible[: min(cuts)]
        end = len(text) - partial_length(text, self._strings)
        self._held = text[end:]
        return text[:end]

    def finish(self, pending: str) -> str:
        """Return the rest of the text, including ``pending``, cut before a stop string; call it at the end."""
        rest = self.push(pending)
        return rest + self._held
