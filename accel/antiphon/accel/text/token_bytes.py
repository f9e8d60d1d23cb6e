"""Compute the bytes of single tokens. Joined, the bytes of all tokens are the bytes of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
