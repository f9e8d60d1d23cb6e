"""A logits processor that restricts the output to JSON that follows a schema.

It uses llguidance, and does not depend on drafts or models.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from antiphon.accel.constraints.json_schema import JsonSchema, expressible_schema, map_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("antiphon.accel")

CANDIDATES = 4
"""When few tokens are left, the processor checks this many of the most likely tokens. It allows a
token if the response can still be completed after this token."""

SLACK = 8
"""One token may lengthen the shortest completion by one part of the schema, and by this many bytes
of brackets and quotes."""

LONGEST = 4096
"""Maximum length, in tokens, of the completions that `shortest_completion` tries."""

FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""White space as in `json.dumps`; keywords that no grammar can express are skipped and reported."""

CLOSING = '"]},"0123456789ntf[{'
"""Characters that are tried, in this order, to complete a response.

Only the first is tried inside a string, and only the others outside.
"""

CLASSES = ("1023456789", "ZDTWYMHSABCEFGIJKLNOPQRUVX", "abcdefghijklmnopqrstuvwxyz", *"@.:/-_+ ,;=!?#%&*()[]{}<>|~^$'`")
"""Classes of characters to try if the format or pattern of a string does not allow its end yet."""

CLASS_OF = {character: place for place, characters in enumerate(CLASSES) for character in characters}


class JsonGrammar:
    """Makes responses follow JSON schemas.

    A response is complete within its maximum length, so it can always be parsed. Objects have only
    the properties that their schema names, unless the schema explicitly allows other properties.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabularies: dict[int, Any] = {}

    def processors(
        self, schema: JsonSchema | None, prompt_tokens: int, max_new_tokens: int, end_tokens: Sequence[int]
    ) -> LogitsProcessorList:
        """Return the logits processor of one response; an empty list without a schema.

        Args:
            schema: The JSON schema, or None.
            end_tokens: Tokens that end a response, at least one; a complete response may end with any of them.

        Raises:
            ValueError: The schema is invalid or not supported, or its shortest response is longer
                than ``max_new_tokens``.
        """
        if schema is None:
            return LogitsProcessorList()
        if not end_tokens:
            raise ValueError("This model has no end token, which an answer that follows a JSON schema needs.")
        tokens = self._vocabulary(end_tokens[0])
        mark = self._tokenizer.encode(schema.unless, add_special_tokens=False)
        return LogitsProcessorList([_SchemaProcessor(tokens, schema, prompt_tokens, max_new_tokens, end_tokens, mark)])

    def _vocabulary(self, end: int) -> Any:
        """Return the vocabulary in llguidance's form, with one end token."""
        from llguidance.hf import from_tokenizer

        if end not in self._vocabularies:
            size = max(self._vocab_size, len(self._tokenizer))
            own: Any = getattr(self._tokenizer, "loaded", self._tokenizer)  # llguidance needs transformers' tokenizer
            self._vocabularies[end] = from_tokenizer(own, n_vocab=size, eos_token=end)
        return self._vocabularies[end]


class _SchemaProcessor(LogitsProcessor):
    """Rules out tokens after which the response no longer follows the schema or cannot be completed in time.

    Args:
        mark: A response that begins with these tokens is not restricted.
    """

    def __init__(
        self,
        tokens: Any,
        wanted: JsonSchema,
        prompt_tokens: int,
        max_new_tokens: int,
        end_tokens: Sequence[int],
        mark: Sequence[int] = (),
    ) -> None:
        from llguidance import LLMatcher

        schema, removed = expressible_schema(wanted.schema)
        written = json.dumps({**_closed(schema), "x-guidance": FORM})
        grammar = LLMatcher.grammar_from_json_schema(written)
        is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, tokens)
        if is_wrong:
            raise ValueError(f"No answer can follow this JSON schema: {'; '.join(messages)}; change the schema.")
        if removed := [*removed, *messages]:
            logger.warning("A part of the JSON schema is left to validation: %s.", "; ".join(removed))
        self._tokens = tokens
        self._end_tokens = list(end_tokens)
        self._end = prompt_tokens + max_new_tokens
        self._read = self._start = prompt_tokens
        self._growth = SLACK + _largest(schema, schema, {})
        closing = [tokens.tokenize_str(each) for each in CLOSING]
        self._state = _ParserState(LLMatcher(tokens, grammar), tokens, closing)
        begins_json = mark and self._state.allowed_tokens(mark[0] + 1)[mark[0]]
        self._mark = [] if begins_json else list(mark)
        if wanted.begun and not self._state.advance(tokens.tokenize_str(wanted.begun)):
            raise ValueError(
                f"No answer that begins with {wanted.begun!r} can follow this JSON schema; change one of them."
            )
        least = self._state.shortest_completion()
        self._least = len(least or ())
        if least is None or len(least) > max_new_tokens:
            count = "more than that" if least is None else len(least)
            raise ValueError(
                f"The answer may have {max_new_tokens} tokens, and the shortest that follows this JSON schema has "
                f"{count}; raise max_new_tokens, or ask for less."
            )

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores, shape (1, vocab), with -inf for every token that may not come next."""
        begun = input_ids[0, self._start : self._start + len(self._mark)].tolist()
        if begun and begun == self._mark:
            return scores
        if begun and begun == self._mark[: len(begun)]:
            return only(scores, [self._mark[len(begun)]])
        new = input_ids[0, self._read :].tolist()
        self._read += len(new)
        self._state.advance([token for token in new if token not in self._end_tokens])
        admitted = self._state.allowed_tokens(scores.shape[-1])
        left = self._end - self._read
        if left <= self._least + 2 * self._growth:  # else every token still fits
            admitted &= self._in_time(admitted, scores, left)
        admitted[self._end_tokens] = admitted[self._tokens.eos_token]  # any of them ends a complete response
        if self._read == self._start:
            admitted[self._mark[:1]] = True
        return scores.masked_fill(torch.from_numpy(~admitted).to(scores.device), -torch.inf)

    def _in_time(self, admitted: Any, scores: Tensor, left: int) -> Any:
        """Return a mask of the tokens after which the response can end in time; it allows at least one token."""
        shortest = self._state.shortest_completion() or [self._tokens.eos_token]
        if len(shortest) + self._growth < left:
            return admitted
        kept = np.zeros_like(admitted)
        kept[shortest[0]] = True
        allowed = scores[0].masked_fill(torch.from_numpy(~admitted).to(scores.device), -torch.inf)
        for token in allowed.topk(min(CANDIDATES, allowed.numel())).indices.tolist():
            if admitted[token]:
                rest = self._state.after(token).shortest_completion()
                kept[token] |= rest is not None and len(rest) <= left - 1
        return kept


def only(scores: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the scores with -inf for all tokens except the given tokens, whose scores stay finite."""
    kept = torch.full_like(scores, -torch.inf)
    kept[:, list(tokens)] = scores[:, list(tokens)].clamp(min=-1e4)
    return kept


class _ParserState:
    """The state of the parser after a part of the response."""

    def __init__(
        self, matcher: Any, tokens: Any, closing: list[list[int]], in_string: bool = False, escaped: bool = False
    ) -> None:
        self._matcher = matcher
        self._closing = closing
        self._tokens = tokens
        self._in_string = in_string
        self._escaped = escaped
        self._used = Counter[int]()  # characters of the current string by their place in CLASSES

    def advance(self, tokens: list[int]) -> bool:
        """Parse further tokens; return whether all of them were allowed."""
        for byte in self._tokens.decode_bytes([token for token in tokens if token != self._tokens.eos_token]):
            if self._escaped:
                self._escaped = False
            elif byte == ord('"'):
                self._in_string = not self._in_string
                self._used.clear()
            else:
                self._escaped = self._in_string and byte == ord("\\")
                self._used[CLASS_OF.get(chr(byte), -1)] += 1
        return bool(self._matcher.consume_tokens(tokens))

    def allowed_tokens(self, size: int) -> Any:
        """Return a mask of the tokens that may come next, shape (size,)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little", count=size).astype(bool)

    def after(self, token: int) -> _ParserState:
        """Return the state after one more token."""
        state = self._copy()
        state.advance([token])
        return state

    def shortest_completion(self) -> list[int] | None:
        """Return a short sequence of tokens that completes the response; None if none is found."""
        state, completion = self._copy(), list[int]()
        while not (state._matcher.is_accepting() or state._matcher.is_stopped()):
            if len(completion) > LONGEST:
                return None
            tokens = state._next()
            if not tokens or not state.advance(tokens):
                return None
            completion += tokens
        return completion

    def _next(self) -> list[int]:
        """Return the next part of a short completion.

        If tokens are forced, the part consists of these tokens. Otherwise it is a closing character
        or, if none is allowed, another character. Inside a string, this other character belongs to
        the class of characters that the string has used least. Otherwise, formats such as durations
        might never end.
        """
        if forced := self._matcher.compute_ff_bytes():
            return list(self._tokens.tokenize_bytes(forced))
        for closing in self._closing[:1] if self._in_string and not self._escaped else self._closing[1:]:
            if self._matcher.validate_tokens(closing) == len(closing):
                return closing
        found = [
            (self._used[CLASS_OF[each]], place, each) for place, each in enumerate(map(self._allowed, CLASSES)) if each
        ]
        if self._in_string and found:
            return list(self._tokens.tokenize_str(min(found)[2]))
        admitted = np.flatnonzero(self.allowed_tokens(self._tokens.vocab_size)).tolist()
        return [max(admitted, key=lambda token: len(self._tokens.decode_bytes([token])))] if admitted else []

    def _allowed(self, characters: str) -> str:
        """Return the first of the given characters that is allowed next; an empty text if none is."""
        each = ((character, self._tokens.tokenize_str(character)) for character in characters)
        return next((one for one, tokens in each if self._matcher.validate_tokens(tokens) == len(tokens)), "")

    def _copy(self) -> _ParserState:
        copy = _ParserState(self._matcher.deep_copy(), self._tokens, self._closing, self._in_string, self._escaped)
        copy._used = self._used.copy()
        return copy


def _largest(schema: Any, root: Any, known: dict[tuple[int, str, int], int], depth: int = 8) -> int:
    """Return an upper bound for the bytes of the shortest JSON of any part of a schema.

    Args:
        schema: The schema; the result is 0 if it is no mapping.
        known: Results so far, by schema, reference and depth; new results are added.
    """
    if not isinstance(schema, Mapping) or not depth:
        return 0
    root = schema if "$id" in schema else root
    if isinstance(pointer := schema.get("$ref"), str) and pointer.startswith("#/"):
        if (id(root), pointer, depth) not in known:
            found: Any = root
            for name in pointer.removeprefix("#/").split("/"):
                found = found.get(name) if isinstance(found, Mapping) else None
            known[id(root), pointer, depth] = _largest(found, root, known, depth - 1)
        return known[id(root), pointer, depth]
    parts = dict(schema.get("properties") or {})
    inner = {name: _largest(each, root, known, depth - 1) for name, each in parts.items()}
    items = _largest(schema.get("items"), root, known, depth - 1)
    values = [len(json.dumps(each)) for each in schema.get("enum", [schema.get("const")])]
    own = 2 + sum(len(json.dumps(name)) + 4 + (size or 8) for name, size in inner.items()) + max([*values, 8])
    own += int(schema.get("minLength") or 0) + int(schema.get("minItems") or 0) * (items or 8)
    choices = [each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ())]
    return max([own, items, *inner.values(), *(_largest(each, root, known, depth - 1) for each in choices)])


def _closed(schema: Any) -> Any:
    """Restrict objects to the properties that the schema names, unless it explicitly allows other properties."""
    if not isinstance(schema, Mapping):
        return schema
    inner = map_parts(schema, _closed)
    if "allOf" in schema:
        inner["allOf"] = schema["allOf"]
    is_open = "additionalProperties" in schema or not isinstance(schema.get("properties"), Mapping) or "allOf" in schema
    return inner if is_open else {**inner, "additionalProperties": False}
