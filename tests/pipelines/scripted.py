"""A scripted model with known answers and log-probabilities, for tests of passage selection."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from antiphon.accel import Completion, PrefixCache, Summary, Usage
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.continuation_scorer import ContinuationScorer
from antiphon.accel.drafting.draft import Accepted
from antiphon.accel.engines.numpy_logits import NumpyLogits
from antiphon.accel.text.completion import TextStream
from antiphon.accel.text.messages import PromptInput

OTHER = 0


class WordTokenizer:
    """A tokenizer with one token for each word."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = defaultdict(lambda: 1 + len(self._ids))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self._ids[word] for word in text.split()]


class ScriptedStream(TextStream):
    """A stream of one piece of text, with a function that is called before it."""

    def __init__(self, text: str, first: Callable[[], None] = lambda: None) -> None:
        self._pieces, self._first, self.is_closed = iter([text]), first, False

    def __next__(self) -> str:
        self._first()
        return next(self._pieces)

    def close(self) -> None:
        self.is_closed = True

    @property
    def completion(self) -> Completion:
        return Completion("", "stop", Usage(1, 1), Summary(steps=1, tokens=1, seconds=0.0), (1,))


@dataclass
class Scripted:
    """A model with known log-probabilities of lines, in nats; its answers start with ``response_prefix``.

    Attributes:
        likely: the log-probability of each line.
        read: the prompts whose lines it has scored.
        streams: the streams of the latest batch.
        given: the parameters of each call of `stream`.
    """

    likely: Mapping[str, float]
    tokenizer: WordTokenizer = field(default_factory=WordTokenizer)
    options: DecodingOptions = field(default_factory=DecodingOptions)
    read: list[PromptInput] = field(default_factory=list)
    streams: list[ScriptedStream] = field(default_factory=list)
    given: list[dict[str, Any]] = field(default_factory=list)

    def stream(self, prompt: PromptInput, **parameters: Any) -> TextStream:
        self.given.append(parameters)
        return ScriptedStream(parameters.get("response_prefix", "") + " It is so.")

    def stream_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        prefixes: Sequence[PrefixCache] = (),
        **parameters: Any,
    ) -> Sequence[ScriptedStream]:
        self.read += prompts
        assert len(prefixes) == len(prompts)
        self.streams = [ScriptedStream("", partial(self._verify, parameters["drafter"]())) for _ in prompts]
        return self.streams

    def _verify(self, scorer: ContinuationScorer) -> None:
        """Make each text's log-probability its value in ``likely``: that of its second token; all others are 0."""
        draft = scorer.begin((), ())
        assert draft is not None
        scores = torch.full((1 + len(draft.tokens), 99), -1e9)
        scores[:, OTHER] = 0.0
        for text, nats in self.likely.items():
            row = -1
            for index, token in enumerate(self.tokenizer.encode(text)):
                chance = math.exp(nats) if index == 1 else 1.0
                scores[row + 1, token] = math.log(chance)
                if index == 1:
                    scores[row + 1, OTHER] = -1e9 if chance == 1.0 else math.log(1 - chance)
                else:
                    scores[row + 1, OTHER] = -1e9
                row = draft.children.get(row, {}).get(token, -1)
                if row < 0:
                    break
        scorer.observe(draft, Accepted((), (1,)), NumpyLogits(scores.numpy()))
