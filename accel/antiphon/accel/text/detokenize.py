"""Incremental detokenization: convert token ids to text piece by piece, and to bytes one by one."""

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


class TokenBytes:
    """Returns the bytes of tokens, for byte-level vocabularies (GPT-2), SentencePiece vocabularies and others."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._added: dict[int, Any] = dict(getattr(tokenizer, "added_tokens_decoder", {}))
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        state = str(backend.decoder.__getstate__() if backend is not None and backend.decoder is not None else "")
        self._byte_of = byte_alphabet() if "ByteLevel" in state else None
        self._is_spaced = "▁" in state

    def __call__(self, token: int) -> bytes:
        """Return the bytes of a token, including the space with which SentencePiece begins a word."""
        if token in self._added:
            return str(self._added[token].content).encode()
        spelling = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(spelling, str):
            return b""
        if self._byte_of is not None and all(character in self._byte_of for character in spelling):
            return bytes(self._byte_of[character] for character in spelling)
        if len(spelling) == 6 and spelling.startswith("<0x"):
            return bytes([int(spelling[3:5], 16)])
        if self._is_spaced or "▁" in spelling:
            return spelling.replace("▁", " ").encode()
        return str(self._tokenizer.decode([token])).encode()


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary. Printable characters represent themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}
