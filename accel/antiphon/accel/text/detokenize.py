"""Incremental detokenization: convert token ids to text piece by piece."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_TOOL_MARK = re.compile(r"tool.?call|tool.sep|python_tag|\[ARGS\]|\[CALL_ID\]|arg_(?:key|value)", re.IGNORECASE)
"""Matches special tokens that mark a tool call; without them, the call could not be parsed."""

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The character to which a tokenizer decodes incomplete or invalid UTF-8."""


class Detokenizer:
    """Decodes a growing sequence of token ids; its joined pieces equal the decoding of all ids at once.

    Special tokens are skipped, except the marks of tool calls. Spaces are not cleaned up. A piece is returned when
    later tokens can no longer change it: an incomplete UTF-8 character waits for its other bytes,
    and a byte token (``<0xE2>`` in SentencePiece vocabularies) waits for the end of its run of byte
    tokens. Each token is decoded together with the previous piece, so leading spaces are right and
    the total time is linear.

    Args:
        context: Token ids before the first token. Their text is not returned.

    Attributes:
        pending: Text of the last tokens that later tokens may still change.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._dropped = _dropped_tokens(tokenizer)
        self._window = [*context]  # ids of the last returned piece, then the pending ones
        self._given = len(context)  # number of ids in `_window` that belong to the last piece
        self._offset = len(self._decode(self._window)) if context else 0  # characters of the window that were returned
        self.pending = ""

    def push(self, token: int) -> str:
        """Add a token; return the new text that later tokens cannot change. The rest is in ``pending``."""
        self._window.append(token)
        waiting = self._decode(self._window)[self._offset :]
        is_special = waiting == self.pending  # a special token adds no text
        self.pending = waiting
        if is_special or waiting.endswith(UNFINISHED) or self._is_byte(token):
            return ""
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._offset = len(self._decode(self._window))
        self.pending = ""
        return waiting

    def _decode(self, tokens: list[int]) -> str:
        if self._dropped is None:
            return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        kept = [token for token in tokens if token not in self._dropped]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _is_byte(self, token: int) -> bool:
        spelling = self._tokenizer.convert_ids_to_tokens(token)
        return isinstance(spelling, str) and len(spelling) == 6 and spelling.startswith("<0x")


def _dropped_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int] | None:
    """Return the special tokens that are not marks of tool calls; None if the vocabulary has no such marks."""
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special = {token for token, added_token in added.items() if added_token.special}
    marks = {token for token in special if _TOOL_MARK.search(added[token].content)}
    return frozenset(special - marks) if marks else None
