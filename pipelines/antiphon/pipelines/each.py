"""Each passage asked by itself, and the answer that the model is surest of. Knows nothing of how passages are found.

A small reader answers better from one passage than from several, each of which distracts it. So every passage has a
prompt of its own, these are decoded together, and of the answers that are no refusals the likeliest wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from antiphon.accel import Completion, LanguageModel
from antiphon.accel.text.completion import Pieces
from antiphon.pipelines.prompt import DECLINED, Prompt
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class Candidate:
    """What was said to one passage, and how likely the model finds it, in nats; a refusal is not weighed."""

    passage: Passage
    prompt: Prompt
    completion: Completion
    log_probability: float = 0.0

    @property
    def is_refusal(self) -> bool:
        """Whether the model said that the passage does not say."""
        return is_refusal(self.completion.text)


def is_refusal(text: str) -> bool:
    """Whether an answer is that the passages do not say."""
    return text.strip().startswith(DECLINED) or not text.strip()


def ask_each(
    language_model: LanguageModel,
    asked: Sequence[tuple[Passage, Prompt]],
    references: Callable[[Passage, Prompt], Sequence[str]],
    **generation: Any,
) -> list[Candidate]:
    """What the model says to each prompt, from forwards that they share; in the order of the passages.

    ``references`` are what is drafted from for one of them. ``generation`` goes to `LanguageModel.generate_batch`.
    """
    completions = language_model.generate_batch(
        [prompt.content for _, prompt in asked],
        references=[list(references(passage, prompt)) for passage, prompt in asked],
        batch_size=len(asked),
        **generation,
    )
    candidates = [Candidate(*pair, said) for pair, said in zip(asked, completions, strict=True)]
    return _weighed(language_model, candidates)


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The likeliest answer that is no refusal; the first refusal where there is nothing else."""
    answers = [one for one in candidates if not one.is_refusal]
    return max(answers, key=lambda one: one.log_probability) if answers else candidates[0]


def _weighed(language_model: LanguageModel, candidates: Sequence[Candidate]) -> list[Candidate]:
    """With log-probabilities, where there is a choice."""
    if sum(not one.is_refusal for one in candidates) < 2:
        return list(candidates)
    return [
        one
        if one.is_refusal
        else Candidate(
            one.passage,
            one.prompt,
            one.completion,
            language_model.log_probability(one.prompt.content, one.completion),
        )
        for one in candidates
    ]


class Said(Pieces):
    """A completion that is there already, given out as it was decoded: a piece for each forward.

    Closed before its end, the completion is whole all the same.
    """

    def __init__(self, completion: Completion) -> None:
        self.completion = completion
        self._pieces = _pieces(completion)

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Give out nothing more."""
        self._pieces = iter(())


def _pieces(completion: Completion) -> Iterator[str]:
    """The text cut where a forward began to add to it."""
    done = 0
    for _, group in groupby(completion.origins, key=lambda origin: origin.step):
        end = max(origin.end for origin in group)
        if end > done:
            yield completion.text[done:end]
            done = end
    if done < len(completion.text):
        yield completion.text[done:]
