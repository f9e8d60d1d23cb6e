"""A scripted model with known answers and log-probabilities, for tests of passage selection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.accel import Completion, PrefixCache, Summary, Usage
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
    """A model with known log-probabilities of lines, in nats; its answers start with ``response_prefix``.

    Attributes:
        likely: the log-probability of each line.
        read: the prompts whose lines it has scored.
        given: the parameters of each call of `stream`.
    """

    likely: Mapping[str, float]
    tokenizer: WordTokenizer = field(default_factory=WordTokenizer)
    read: list[PromptInput] = field(default_factory=list)
    given: list[dict[str, Any]] = field(default_factory=list)

    def stream(self, prompt: PromptInput, **parameters: Any) -> TextStream:
        self.given.append(parameters)
        return ScriptedStream(parameters.get("response_prefix", "") + " It is so.")

    def score_batch(
        self,
        prompts: Sequence[PromptInput],
        continuations: Sequence[Sequence[str]],
        *,
        prefixes: Sequence[PrefixCache] = (),
        first: int | None = None,
    ) -> list[list[float]]:
        self.read += prompts
        assert len(prefixes) == len(prompts)
        return [[self.likely.get(text, -1e9) for text in own] for own in continuations]
