"""Token ids to text, piece by piece, and where a stop string cuts it. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Detokenizer", "StopStrings"]

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that are no character, or not yet one."""


class Detokenizer:
    """The text of a growing sequence of token ids: its pieces, joined, are the decoding of all ids at once.

    Special tokens are left out and no space is tidied away. A piece is given out when later tokens can no longer
    change it: half a UTF-8 character waits for its other half, and a byte token (``<0xE2>`` in SentencePiece
    vocabularies) for the end of its run of bytes. Each token is decoded together with the piece before it alone,
    so that leading spaces come out right and the whole costs time linear in the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # the ids of the last piece given out, then those that wait
        self._given = 0  # ids of the window that belong to the last piece
        self._offset = 0  # characters of the window's text that are given out
        self.pending = ""

    def push(self, token: int) -> str:
        """The text that this token settles, often empty; what waits is ``pending``."""
        self._window.append(token)
        waiting = self._decode(self._window)[self._offset :]
        is_silent = waiting == self.pending  # a special token, which settles nothing
        self.pending = waiting
        if is_silent or waiting.endswith(UNFINISHED) or self._is_byte(token):
            return ""
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._offset = len(self._decode(self._window))
        self.pending = ""
        return waiting

    def _decode(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def _is_byte(self, token: int) -> bool:
        spelling = self._tokenizer.convert_ids_to_tokens(token)
        return isinstance(spelling, str) and len(spelling) == 6 and spelling.startswith("<0x")


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
