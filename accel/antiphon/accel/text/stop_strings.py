"""Stop strings: cuts a growing text exactly before the first one."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.text.detokenize import UNFINISHED


class StopStrings:
    """Cuts a growing text before the first stop string, and holds back what may be the beginning of one.

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
        """Return the text that can be streamed after this piece: no stop string can begin in it.

        Args:
            pending: Text after it that the detokenizer may still change. A complete stop string in it ends the text.

        Returns:
            The new text; if ``is_found`` is then true, the end of the text.
        """
        text = self._held + piece
        visible = text + pending.rstrip(UNFINISHED)
        cuts = [at for at in (visible.find(string) for string in self._strings) if at >= 0]
        if cuts:
            self.is_found = True
            self._held = ""
            return visible[: min(cuts)]
        end = len(text) - self._partial_length(text)
        self._held = text[end:]
        return text[:end]

    def finish(self, pending: str) -> str:
        """Return the rest of a text that ends here, including ``pending``, cut before a stop string."""
        rest = self.push(pending)
        return rest + self._held

    def _partial_length(self, text: str) -> int:
        """Return how many characters at the end of a text are the beginning of a stop string."""
        longest = max((len(string) for string in self._strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(string.startswith(text[-length:]) for string in self._strings):
                return length
        return 0
