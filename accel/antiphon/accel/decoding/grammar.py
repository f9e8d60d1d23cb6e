"""Answers in JSON that follow a schema, as a logits processor over llguidance. Knows nothing of drafts or models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CANDIDATES = 8
"""How many of the best tokens are tried when few are left, for one after which the answer can still be finished."""

LONGEST = 4096
"""The most tokens that are looked for to finish an answer."""

FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as `json.dumps` writes it."""

CLOSING = '"]},"0123456789ntf[{'
"""What is tried to finish an answer: the first in a string, the others outside of one, what ends most first."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON schema, and how an answer in it begins where the prompt already says so."""

    schema: Mapping[str, Any]
    begun: str = ""


class JsonGrammar:
    """What makes an answer follow a JSON schema, for the tokens of one tokenizer; ``end`` is what ends a text.

    The answer is whole before its last token is spent, so it always parses. Objects have the properties that their
    schema names and no others, unless it says so.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int, end: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._end = end

    def processors(
        self, schema: Mapping[str, Any] | JsonSchema | None, prompt_tokens: int, room: int
    ) -> LogitsProcessorList:
        """The processor of one answer, of at most ``room`` tokens; none without a schema.

        Raises:
            ValueError: the schema is not valid or asks for what no grammar can say, or no answer in it is so short.
            ImportError: llguidance is not installed; says the command.
        """
        if schema is None:
            return LogitsProcessorList()
        asked = schema if isinstance(schema, JsonSchema) else JsonSchema(schema)
        follower = _Follower(self._tokens, asked, prompt_tokens, room)
        return LogitsProcessorList([follower])

    @cached_property
    def _tokens(self) -> Any:
        try:
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise ImportError(
                "Answers that follow a JSON schema need llguidance; run: pip install 'antiphon[structured]'"
            ) from error
        size = max(self._vocabulary, len(self._tokenizer))
        return from_tokenizer(self._tokenizer, n_vocab=size, eos_token=self._end)  # type: ignore[arg-type]


class _Follower(LogitsProcessor):
    """Leaves the tokens their scores after which the answer still follows the schema, and can be finished in time."""

    def __init__(self, tokens: Any, asked: JsonSchema, prompt_tokens: int, room: int) -> None:
        from llguidance import LLMatcher

        written = json.dumps({**_closed(asked.schema), "x-guidance": FORM})
        grammar = LLMatcher.grammar_from_json_schema(written)
        is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, tokens)
        if is_wrong:
            raise ValueError(f"No answer can follow this JSON schema: {'; '.join(messages)}; change the schema.")
        self._tokens = tokens
        self._end = prompt_tokens + room
        self._read = prompt_tokens
        self._growth = CANDIDATES + max(_sizes(asked.schema, asked.schema), default=0)
        self._place = _Place(LLMatcher(tokens, grammar), tokens, [tokens.tokenize_str(each) for each in CLOSING])
        if asked.begun and not self._place.take(tokens.tokenize_str(asked.begun)):
            raise ValueError(
                f"No answer that begins with {asked.begun!r} can follow this JSON schema; change one of them."
            )
        least = self._place.finish()
        self._least = len(least or ())
        if least is None or len(least) > room:
            count = "more than that" if least is None else len(least)
            raise ValueError(
                f"The answer may have {room} tokens, and the shortest that follows this JSON schema has {count}; "
                "raise max_new_tokens, or ask for less."
            )

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of shape (1, vocab) with -inf for every token that may not come next."""
        fresh = input_ids[0, self._read :].tolist()
        self._read += len(fresh)
        self._place.take(fresh)
        admitted = self._place.admitted(scores.shape[-1])
        left = self._end - self._read
        if left <= self._least + 2 * self._growth:  # further away no token can make it too late
            admitted &= self._in_time(admitted, scores, left)
        return scores.masked_fill(torch.from_numpy(~admitted).to(scores.device), -torch.inf)

    def _in_time(self, admitted: Any, scores: Tensor, left: int) -> Any:
        """Which of the best tokens leave enough for the answer to be finished; there is always one."""
        way = self._place.finish() or [self._tokens.eos_token]
        if len(way) + self._growth < left:
            return admitted
        kept = np.zeros_like(admitted)
        kept[way[0]] = True
        allowed = scores[0].masked_fill(torch.from_numpy(~admitted).to(scores.device), -torch.inf)
        for token in allowed.topk(min(CANDIDATES, allowed.numel())).indices.tolist():
            if admitted[token]:
                then = self._place.after(token)
                rest = then.finish()
                kept[token] |= rest is not None and len(rest) <= left - 1
        return kept


class _Place:
    """How far an answer has come."""

    def __init__(
        self, matcher: Any, tokens: Any, closing: list[list[int]], in_string: bool = False, escaped: bool = False
    ) -> None:
        self._matcher = matcher
        self._closing = closing
        self._tokens = tokens
        self._in_string = in_string
        self._escaped = escaped

    def take(self, tokens: list[int]) -> bool:
        """Go on by these tokens; whether all of them were admitted."""
        for byte in self._tokens.decode_bytes([token for token in tokens if token != self._tokens.eos_token]):
            if self._escaped:
                self._escaped = False
            elif byte == ord('"'):
                self._in_string = not self._in_string
            else:
                self._escaped = self._in_string and byte == ord("\\")
        return bool(self._matcher.consume_tokens(tokens))

    def admitted(self, size: int) -> Any:
        """Which tokens may come next, of shape (size,)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little", count=size).astype(bool)

    def after(self, token: int) -> _Place:
        """The place after one more token."""
        place = self._copy()
        place.take([token])
        return place

    def finish(self) -> list[int] | None:
        """A short way to the end of the answer, in tokens; None where there is no short one."""
        place, way = self._copy(), list[int]()
        while not (place._matcher.is_accepting() or place._matcher.is_stopped()):
            if len(way) > LONGEST:
                return None
            taken = place._next()
            if not taken or not place.take(taken):
                return None
            way += taken
        return way

    def _next(self) -> list[int]:
        """What must come next, or what ends most of what may."""
        if forced := self._matcher.compute_ff_bytes():
            return list(self._tokens.tokenize_bytes(forced))
        for closing in self._closing[:1] if self._in_string and not self._escaped else self._closing[1:]:
            if self._matcher.validate_tokens(closing) == len(closing):
                return closing
        admitted = np.flatnonzero(self.admitted(self._tokens.vocab_size)).tolist()
        return [max(admitted, key=lambda token: len(self._tokens.decode_bytes([token])))] if admitted else []

    def _copy(self) -> _Place:
        return _Place(self._matcher.deep_copy(), self._tokens, self._closing, self._in_string, self._escaped)


def _sizes(schema: Any, root: Any, depth: int = 8) -> list[int]:
    """How many bytes the shortest of anything in a schema has at most: of each part that an answer may begin."""
    if not isinstance(schema, Mapping) or not depth:
        return []
    if isinstance(pointer := schema.get("$ref"), str) and pointer.startswith("#/"):
        found: Any = root
        for name in pointer.removeprefix("#/").split("/"):
            found = found.get(name) if isinstance(found, Mapping) else None
        return _sizes(found, root, depth - 1)
    parts = dict(schema.get("properties") or {})
    inner = {name: _sizes(each, root, depth - 1) for name, each in parts.items()}
    own = 2 + sum(len(json.dumps(name)) + 4 + max(sizes, default=8) for name, sizes in inner.items())
    values = [len(json.dumps(each)) for each in schema.get("enum", [schema.get("const")])]
    items = _sizes(schema.get("items"), root, depth - 1)
    own += (
        max(*values, 8) + int(schema.get("minLength") or 0) + int(schema.get("minItems") or 0) * max(items, default=8)
    )
    among = [
        size
        for key in ("anyOf", "oneOf", "allOf")
        for each in schema.get(key, ())
        for size in _sizes(each, root, depth - 1)
    ]
    return [own, *items, *among, *(size for sizes in inner.values() for size in sizes)]


def _closed(schema: Any) -> Any:
    """The schema, whose objects have no properties that it does not name, unless it says that they may."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {
        name: each if name in ("allOf", "enum", "const", "default") else _closed(each) for name, each in schema.items()
    }
    is_open = "additionalProperties" in schema or not isinstance(schema.get("properties"), Mapping) or "allOf" in schema
    return inner if is_open else {**inner, "additionalProperties": False}
