"""A scripted model with known answers, for tests of passage selection."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from antiphon.accel import Completion, Summary, Usage
from antiphon.accel.text.completion import TextStream
from antiphon.accel.text.messages import PromptInput


class WordTokenizer:
    """A tokenizer with one token for each word."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = defaultdict(lambda: 1 + len(self._ids))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self._ids[word] for word in text.split()]


class ScriptedStream(TextStream):
    """A stream of one piece of text."""

    def __init__(self, text: str) -> None:
        self._pieces = iter([text])

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        pass

    @property
    def completion(self) -> Completion:
        return Completion("", "stop", Usage(1, 1), Summary(steps=1, tokens=1, seconds=0.0), (1,))


@dataclass
class Scripted:
    """A model whose answers start with ``response_prefix``.

    Attributes:
        tokenizer: counts words.
        given: the parameters of each call of `stream`.
    """

    tokenizer: WordTokenizer = field(default_factory=WordTokenizer)
    given: list[dict[str, Any]] = field(default_factory=list)

    def stream(self, prompt: PromptInput, **parameters: Any) -> TextStream:
        self.given.append(parameters)
        return ScriptedStream(parameters.get("response_prefix", "") + " It is so.")
