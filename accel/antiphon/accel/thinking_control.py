"""A logits processor that limits the model's thinking, and applies a JSON schema to the answer after the thinking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from antiphon.accel.constraints.grammar import only
from antiphon.accel.decoding.tokens import RequestOutput
from antiphon.accel.text.thinking import ThinkingReader, ThinkingStart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MakeSchema = Callable[[int, int], Any]
"""Returns a JSON schema's processors, given the answer's first position and maximum length."""


class ThinkingControl(LogitsProcessor):
    """Limits a request's thinking and answer separately; applies a JSON schema to the answer only.

    When the thinking reaches its limit, the tokens of its end mark are forced. The scores depend
    only on the confirmed tokens, so the output is the same with and without drafts.

    With a schema, the model may begin with thinking or with the answer. End tokens are forbidden during thinking.

    Args:
        max_new_tokens: Maximum length of the answer, or of the whole output if the thinking has no separate limit.
        max_thinking_tokens: Maximum length of the thinking; None: no separate limit.
        max_total: Number of tokens that fit into the context window after the prompt.
        make_schema: Function that makes the processors of the schema; None: no schema.

    Attributes:
        limit: Maximum length of the whole output.

    Raises:
        ValueError: The schema is not supported, or its shortest answer does not fit.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        start: ThinkingStart,
        prompt_tokens: int,
        *,
        max_new_tokens: int,
        max_thinking_tokens: int | None,
        max_total: int,
        make_schema: MakeSchema | None,
        end_tokens: Sequence[int],
    ) -> None:
        self._reader = ThinkingReader(tokenizer, start)
        self._prompt_tokens = self._read = prompt_tokens
        self._max_thinking = max_thinking_tokens
        self._max_answer = None if max_thinking_tokens is None else max_new_tokens
        self._make_schema = make_schema
        self._end_tokens = list(end_tokens) if make_schema else []
        encode, marks = tokenizer.encode, start.format
        self._closing: list[int] = encode(marks.closing, add_special_tokens=False)
        headers = [marks.opening, marks.answer] if marks.answer else [marks.opening]
        self._headers = [encode(header, add_special_tokens=False) for header in headers]
        self._after_thinking: list[int] = encode(marks.closing.partition(marks.end)[2], add_special_tokens=False)
        marks_length = len(self._closing) + max(map(len, self._headers))
        added = 0 if max_thinking_tokens is None else max_thinking_tokens + marks_length
        self.limit = min(max_new_tokens + added, max_total)
        self._max_length = prompt_tokens + self.limit
        self._demands_header = bool(marks.answer)
        self._begun: list[int] = []  # tokens of the header so far
        self._forced: list[int] = []
        self._spent = 0  # tokens of the thinking
        self._output: RequestOutput | None = None
        self._has_answer = False
        self._schema: Any = None
        if make_schema is not None:
            self._schema = make_schema(prompt_tokens, min(max_new_tokens, max_total))
            if max_thinking_tokens is None:
                self._limit_thinking(make_schema, marks_length)
        self._follow(self._reader.state)

    def bind(self, output: RequestOutput) -> None:
        """Set the output whose maximum length is reduced when the answer begins."""
        self._output = output

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores, shape (1, vocab), with -inf for every token that may not come next."""
        new = input_ids[0, self._read :].tolist()
        for token in new:
            self._push(token)
        if self._forced:
            return only(scores, self._forced[:1])
        if self._reader.state == "thinking":
            return _without(scores, self._end_tokens)
        if self._schema is None or self._has_answer:
            return scores if self._schema is None else self._schema(input_ids, scores)
        return self._before(input_ids, scores)

    def _before(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """At the start of the output, allow only a header (of thinking or answer), or an answer without a header."""
        size = len(self._begun)
        headers = [self._after_thinking] if self._reader.has_thought else self._headers
        following = [header[size] for header in headers if header[:size] == self._begun and len(header) > size]
        if self._demands_header or size:
            return only(scores, following) if following else scores
        allowed: Tensor = self._schema(input_ids, scores)
        allowed[:, following] = scores[:, following]
        return allowed

    def _push(self, token: int) -> None:
        before = self._reader.state
        self._reader.push(token)
        self._read += 1
        self._spent += before == "thinking"
        self._begun = [*self._begun, token] if before == "before" == self._reader.state else []
        if self._forced:
            self._forced = self._forced[1:]
        elif self._make_schema is not None and before == "thinking" and self._reader.state == "answer":
            self._forced = list(self._after_thinking)  # white space that the schema does not allow
        self._follow(self._reader.state)

    def _follow(self, state: str) -> None:
        """Force the end of the thinking at its limit, and begin the answer after it."""
        is_at_limit = self._max_thinking is not None and self._spent >= self._max_thinking
        if state == "thinking" and is_at_limit and not self._forced:
            self._forced = list(self._closing)
        if state != "answer" or self._forced or self._has_answer:
            return
        begins_at_once = not self._reader.has_thought and not self._demands_header
        self._has_answer, start = True, self._prompt_tokens if begins_at_once else self._read
        if self._max_answer is not None:
            self._max_length = min(self._max_length, start + self._max_answer)
            if self._output is not None:
                self._output.max_length = min(self._output.max_length, self._max_length)
        if self._make_schema is not None and not begins_at_once:
            self._schema = self._make_schema(start, self._max_length - start)

    def _limit_thinking(self, make_schema: MakeSchema, marks_length: int) -> None:
        """Limit the thinking to half of the output, or less if the shortest answer would not fit after it."""
        for most in (self.limit // 2, self.limit // 4, self.limit // 8, 0):
            try:
                make_schema(self._prompt_tokens, max(self.limit - most - marks_length, 1))
            except ValueError:
                continue
            self._max_thinking = most
            return
        self._max_thinking, self._headers = 0, self._headers[1:]  # the answer fits only without thinking
        needed = self._closing if self._reader.state == "thinking" else next(iter(self._headers), [])
        make_schema(self._prompt_tokens, max(self.limit - len(needed), 1))


def _without(scores: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the scores with -inf for the given tokens."""
    if not tokens:
        return scores
    changed = scores.clone()
    changed[:, list(tokens)] = -torch.inf
    return changed
