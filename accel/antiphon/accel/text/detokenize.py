"""Token ids to text, piece by piece, and where a stop string cuts it. Knows nothing of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Detokenizer"]

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
