"""Return log-probabilities of tokens in OpenAI's two formats.

Joined, the bytes of all tokens are the bytes of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from antiphon.accel import Completion, Origin
from antiphon.accel.decoding.stats import TokenLogprob
from antiphon.accel.text.token_bytes import TokenBytes
from antiphon.pipelines.server.request_queue import Delta

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of the visible text.

    Attributes:
        raw: its bytes.
        start: its first character in the text.
        logprob: its log-probability, and the most likely alternatives.
    """

    raw: bytes
    start: int
    logprob: TokenLogprob


class LogprobReader:
    """Returns the tokens whose text has been sent, except end tokens and tokens of a stop string.

    Args:
        tokenizer: the model's tokenizer; None: the text has no tokens.

    Attributes:
        bytes_of: returns the bytes of a token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.bytes_of: Callable[[int], bytes] = (lambda token: b"") if tokenizer is None else TokenBytes(tokenizer)
        self._special = frozenset(() if tokenizer is None else tokenizer.all_special_ids)
        self._held: list[tuple[TokenLogprob, Origin]] = []
        self._text = ""

    def push(self, delta: Delta) -> list[TextToken]:
        """Add a delta; return the tokens whose text has now been sent."""
        first = len(delta.origins) - len(delta.logprobs)
        self._held += zip(delta.logprobs, delta.origins[first:], strict=True)
        self._text += delta.text
        end = len(self._text)
        sent = takewhile(lambda held: held[1].start < end and held[1].end <= end, self._held)
        return self._take(len([*sent]))

    def finish(self, completion: Completion) -> list[TextToken]:
        """Return the remaining tokens. If a stop string cut the text within a token, that token is cut, too."""
        self._text = completion.text
        ready = sum(origin.start < len(self._text) for _, origin in self._held)
        return self._take(ready)

    def read(self, completion: Completion) -> list[TextToken]:
        """Return all tokens of a completion."""
        first = completion.usage.reasoning_tokens
        self._held = list(zip(completion.logprobs[first:], completion.origins[first:], strict=False))
        return self.finish(completion)

    def _take(self, count: int) -> list[TextToken]:
        taken, self._held = self._held[:count], self._held[count:]
        return [self._text_token(*each) for each in taken]

    def _text_token(self, logprob: TokenLogprob, origin: Origin) -> TextToken:
        raw = self._visible(logprob, origin)
        held = origin.end - origin.start - len(raw.decode(errors="replace"))  # characters that begin in earlier tokens
        return TextToken(raw, origin.start + max(held, 0), logprob)

    def _visible(self, logprob: TokenLogprob, origin: Origin) -> bytes:
        """Return the visible bytes of a token: none of an end token, only a part if a stop string cut the token."""
        raw = self.bytes_of(logprob.token)
        piece = self._text[origin.start : origin.end]
        try:
            whole = raw.decode()
        except UnicodeDecodeError:
            return raw
        if not piece:
            return b"" if logprob.token in self._special else raw
        if whole in piece:
            return raw
        if whole.startswith(" ") and whole[1:] in piece:
            return raw[1:]
        kept = next((size for size in range(len(whole), 0, -1) if piece.endswith(whole[:size])), 0)
        return whole[:kept].encode()


def chat_logprobs(tokens: Iterable[TextToken], bytes_of: Callable[[int], bytes]) -> dict[str, Any]:
    """Return the ``logprobs`` object of a chat completion.

    Args:
        bytes_of: returns the bytes of a token, for the alternatives.
    """

    def entry(raw: bytes, logprob: float) -> dict[str, Any]:
        return {"token": _spelling(raw), "logprob": logprob, "bytes": list(raw)}

    return {
        "content": [
            {
                **entry(each.raw, each.logprob.logprob),
                "top_logprobs": [entry(bytes_of(token), value) for token, value in each.logprob.top],
            }
            for each in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[TextToken], bytes_of: Callable[[int], bytes]) -> dict[str, Any]:
    """Return the ``logprobs`` object of a text completion."""
    return {
        "tokens": [_spelling(each.raw) for each in tokens],
        "token_logprobs": [each.logprob.logprob for each in tokens],
        "top_logprobs": [{_spelling(bytes_of(one)): value for one, value in each.logprob.top} for each in tokens],
        "text_offset": [each.start for each in tokens],
    }


def _spelling(raw: bytes) -> str:
    """Return the text of a token, or its bytes in OpenAI's notation if the token is only a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
